"""Owns the question whether a parked sequence keeps its blocks. Moves no block and no sequence.

A parked sequence wastes its blocks for as long as its tools take; one that has lost them wastes the time in which they
are computed again, its own blocks' and those of everybody who waits meanwhile. The lesser waste wins.
Source: InferCept, arXiv:2402.01869, section 4 (its swapping to host memory aside).
"""

import time
from collections.abc import Callable, Iterable

from midstream.engine.sequence import Sequence

MAX_SHARE = 0.5
"""Of the pool, for all parked sequences together."""
_BLEND = 0.3
"""Weight of the newest time in what is expected of a tool."""


class Parking:
    """What is known of the tools that sequences wait for. Owned by the engine's loop thread."""

    def __init__(self, num_blocks: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self.max_blocks = int(MAX_SHARE * num_blocks)
        self.num_kept = 0
        """Times that a sequence parked and kept its blocks."""
        self.num_released = 0
        """Times that one gave them back."""
        self._now_s = now_s
        self._since_s: dict[int, float] = {}
        self._expected_s: dict[str, float] = {}

    def begin(self, seq: Sequence) -> None:
        self._since_s[seq.request_id] = self._now_s()

    def end(self, seq: Sequence) -> None:
        """The results are in: that is how long its tools took."""
        since_s = self._since_s.pop(seq.request_id, None)
        if since_s is None:
            return
        took_s = self._now_s() - since_s
        for name in seq.watch.server_calls:
            before_s = self._expected_s.get(name, took_s)
            self._expected_s[name] = (1 - _BLEND) * before_s + _BLEND * took_s

    def forget(self, seq: Sequence) -> None:
        """It will not wake."""
        self._since_s.pop(seq.request_id, None)

    def gives_back(self, seq: Sequence, *, num_running_blocks: int, token_s: float) -> bool:
        """Whether to compute it again wastes less than to keep its blocks until its tools are expected back.

        `token_s`: what a prompt's token costs. For a tool that nobody has waited for yet the blocks are kept.
        """
        return self._saved_by_release(seq, num_running_blocks, token_s) > 0

    def victims(self, parked: Iterable[Sequence], *, num_running_blocks: int, token_s: float) -> list[Sequence]:
        """Who gives its blocks back so that all parked ones keep to their share, the greatest waste first."""
        holding = [seq for seq in parked if seq.block_table]
        num_over = sum(len(seq.block_table) for seq in holding) - self.max_blocks
        holding.sort(key=lambda seq: self._saved_by_release(seq, num_running_blocks, token_s), reverse=True)
        chosen: list[Sequence] = []
        for seq in holding:
            if num_over <= 0:
                break
            chosen.append(seq)
            num_over -= len(seq.block_table)
        return chosen

    def _saved_by_release(self, seq: Sequence, num_running_blocks: int, token_s: float) -> float:
        """Block-seconds that are wasted less when it gives its blocks back."""
        num_blocks = len(seq.block_table)
        again_s = seq.num_tokens * token_s
        return self._remaining_s(seq) * num_blocks - again_s * (num_blocks + num_running_blocks)

    def _remaining_s(self, seq: Sequence) -> float:
        """A turn wakes when the last of its results is in."""
        expected_s = max((self._expected_s.get(name, 0.0) for name in seq.watch.server_calls), default=0.0)
        return max(0.0, expected_s - (self._now_s() - self._since_s.get(seq.request_id, self._now_s())))
