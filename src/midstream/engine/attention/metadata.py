"""Owns where each row's queries stand and which slots its context fills. Computes no attention."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RowContext:
    """One sequence's part of the batch: queries [query_start, query_end), context of `slots`.

    The last query sees the whole context; the one before it sees one token less, and so on.
    """

    query_start: int
    query_end: int
    slots: Tensor  # [C] int64, the sequence's slots in order of position


@dataclass(frozen=True)
class AttentionMetadata:
    slot_mapping: Tensor  # [T] int64, where the new tokens' keys and values go
    rows: list[RowContext]
