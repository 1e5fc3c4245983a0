"""Owns what one step computes: which tokens of which sequences. Holds no tensors and makes no choices."""

from dataclasses import dataclass

from midstream.engine.blocks import BlockCopy
from midstream.engine.sequence import Sequence


@dataclass(frozen=True)
class Row:
    """`num_new` tokens of one sequence, from `start` on, and guesses at those that will follow them.

    positions   [start ........ end)[end ........ end + len(drafts))
                 num_new tokens      drafts: right or wrong is seen once they are computed
    """

    seq: Sequence
    start: int
    num_new: int
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.num_new

    @property
    def samples(self) -> bool:
        """True when the row reaches the sequence's last token, so that its logits give the next one."""
        return self.end == self.seq.num_tokens

    @property
    def token_ids(self) -> list[int]:
        """All tokens that the row computes, drafts included."""
        return [*self.seq.token_ids[self.start : self.end], *self.drafts]

    @property
    def num_logits(self) -> int:
        """Logits that the row gives: after its last token, and after each draft."""
        return 1 + len(self.drafts) if self.samples else 0


@dataclass(frozen=True)
class Batch:
    rows: list[Row]
    copies: list[BlockCopy]
    """To run in this order before anything is written."""

    @property
    def sampling_rows(self) -> list[Row]:
        return [row for row in self.rows if row.samples]
