"""Owns what one step computes: which tokens of which sequences. Holds no tensors and makes no choices."""

from dataclasses import dataclass

from midstream.engine.blocks import BlockCopy
from midstream.engine.sequence import Sequence


@dataclass(frozen=True)
class Row:
    """`num_new` tokens of one sequence, from `start` on: positions [start, start + num_new)."""

    seq: Sequence
    start: int
    num_new: int

    @property
    def samples(self) -> bool:
        """True when the row reaches the sequence's last token, so that its logits give the next one."""
        return self.start + self.num_new == self.seq.num_tokens

    @property
    def token_ids(self) -> list[int]:
        return self.seq.token_ids[self.start : self.start + self.num_new]


@dataclass(frozen=True)
class Batch:
    rows: list[Row]
    copies: list[BlockCopy]
    """To run in this order before anything is written."""

    @property
    def num_tokens(self) -> int:
        return sum(row.num_new for row in self.rows)

    @property
    def sampling_rows(self) -> list[Row]:
        return [row for row in self.rows if row.samples]
