"""Owns the reference attention: plain torch, one sequence at a time, right before fast."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
class RaggedAttention:
    """Rows of any number of queries each: what `models/decoder.py` calls an `Attention`."""

    slot_mapping: Tensor  # [T] int64, where the new tokens' keys and values go
    rows: list[RowContext]

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, *, scale: float, sliding_window: int | None
    ) -> Tensor:
        return paged_attention(query, keys, values, self, scale=scale, sliding_window=sliding_window)


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    metadata: RaggedAttention,
    *,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """Causal attention of every row over its own context.

    query [T, H, D]; keys and values [N * B, G, D], the new tokens' included; returns [T, H, D].
    With `sliding_window` w, a query at position p sees positions (p - w, p].
    """
    output = torch.empty_like(query)  # [T, H, D]
    for row in metadata.rows:
        q = query[row.query_start : row.query_end].transpose(0, 1)  # [H, t, D]
        k = keys.index_select(0, row.slots).to(query.dtype).transpose(0, 1)  # [G, C, D]
        v = values.index_select(0, row.slots).to(query.dtype).transpose(0, 1)  # [G, C, D]
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=_mask(row, sliding_window), scale=scale, enable_gqa=True
        )  # [H, t, D]
        output[row.query_start : row.query_end] = attended.transpose(0, 1)
    return output


def _mask(row: RowContext, sliding_window: int | None) -> Tensor | None:
    """Which context positions each query sees: [t, C] bool, or None where a lone query sees everything."""
    num_queries = row.query_end - row.query_start
    context = row.slots.shape[0]
    if num_queries == 1 and (sliding_window is None or context <= sliding_window):
        return None
    positions = torch.arange(context, device=row.slots.device)  # [C]
    own = positions[context - num_queries :].unsqueeze(1)  # [t, 1]
    mask = positions <= own  # [t, C]
    return mask if sliding_window is None else mask & (positions > own - sliding_window)
