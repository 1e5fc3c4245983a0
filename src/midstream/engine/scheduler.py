"""Owns the order in which sequences are served. Never touches tensors, text or sockets.

Every step gets at most `max_num_batched_tokens` tokens. Sequences that decode go first, then whoever has more to
compute, oldest first, cut to what is left: a long prompt delays the others by one chunk and no more, and beside others
its chunks are so small that a step stays within a few times its usual length.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from midstream.engine.batch import Batch, Row
from midstream.engine.blocks import BlockCopy, BlockPool
from midstream.engine.parking import Parking
from midstream.engine.prefill_pacer import PrefillPacer
from midstream.engine.sequence import MAX_DECODE_TOKENS, Sequence, SequenceStatus


class Scheduler:
    """Sequences that wait, run and are parked. Owned by the engine's loop thread."""

    def __init__(
        self,
        blocks: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.pacer = PrefillPacer(max_num_batched_tokens)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []
        self.parking = Parking(blocks.num_blocks, now_s)
        self.num_preemptions = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def park(self, seq: Sequence) -> None:
        """The sequence costs no compute and holds no batch slot; its blocks it keeps unless that wastes more."""
        self._take_out(seq)
        self.parked.append(seq)
        seq.status = SequenceStatus.PARKED
        self.parking.begin(seq)
        num_running_blocks = sum(len(other.block_table) for other in self.running)
        token_s = self.pacer.token_s
        if self.parking.gives_back(seq, num_running_blocks=num_running_blocks, token_s=token_s):
            self._give_back(seq)
        else:
            self.parking.num_kept += 1
        for victim in self.parking.victims(self.parked, num_running_blocks=num_running_blocks, token_s=token_s):
            self._give_back(victim)

    def _give_back(self, seq: Sequence) -> None:
        """Its blocks stay in the prefix cache for as long as nobody needs their room."""
        self.blocks.release(seq)
        self.parking.num_released += 1

    def wake(self, seq: Sequence) -> None:
        """A parked sequence has new tokens: it goes to the front of the queue."""
        self.parking.end(seq)
        self._take_out(seq)
        self.waiting.appendleft(seq)
        seq.status = SequenceStatus.WAITING

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence in any state and free its blocks."""
        self.parking.forget(seq)
        self._take_out(seq)
        self.blocks.release(seq)
        seq.status = SequenceStatus.FINISHED

    def _take_out(self, seq: Sequence) -> None:
        match seq.status:
            case SequenceStatus.WAITING:
                self.waiting.remove(seq)
            case SequenceStatus.RUNNING:
                self.running.remove(seq)
            case SequenceStatus.PARKED:
                self.parked.remove(seq)

    def schedule(self) -> Batch | None:
        """The next step's work, or None when there is nothing to compute."""
        copies = self._admit()
        rows: list[Row] = []
        budget = self.max_num_batched_tokens
        num_decoding = sum(not seq.is_prefilling for seq in self.running)
        prefill_budget = self.pacer.limit(num_decoding, len(self.running) - num_decoding)
        # However many decode, one token of every step is kept for the oldest until it has had its turn.
        num_kept = 1 if self.running else 0
        for seq in sorted(self.running, key=lambda seq: seq.num_pending > MAX_DECODE_TOKENS):
            if seq.status is not SequenceStatus.RUNNING:
                continue
            num_kept = 0 if seq is self.running[0] else num_kept
            num_new = min(seq.num_pending, budget - num_kept)
            if seq.is_prefilling:
                num_new = min(num_new, max(prefill_budget, 1) if seq is self.running[0] else prefill_budget)
            if num_new > 0 and self._make_room(seq, num_new):
                rows.append(Row(seq, seq.num_computed_tokens, num_new))
                budget -= num_new
                prefill_budget -= num_new if seq.is_prefilling else 0
        # An older sequence may have needed the blocks of a younger one that came before it in the batch.
        rows = [row for row in rows if row.seq.status is SequenceStatus.RUNNING]
        assert rows or not self.running, "the oldest sequence always makes progress"
        return Batch(self._with_drafts(rows, budget), copies) if rows else None

    def _with_drafts(self, rows: list[Row], budget: int) -> list[Row]:
        """Let the rows that sample guess on, as far as the step has room; guesses take no other sequence's blocks."""
        if any(row.seq.is_prefilling for row in rows):
            return rows  # as long as a step may be
        num_sampling = sum(row.samples for row in rows)
        drafted = []
        for row in rows:
            drafts = row.seq.propose_drafts(num_sampling)[:budget] if row.samples else ()
            if drafts and self.blocks.allocate(row.seq, row.num_new + len(drafts)):
                budget -= len(drafts)
                row = replace(row, drafts=drafts)  # noqa: PLW2901
            drafted.append(row)
        return drafted

    def _admit(self) -> list[BlockCopy]:
        copies = []
        while self.waiting and len(self.running) < self.max_num_seqs:
            seq = self.waiting[0]
            if not self._has_room_for(seq):
                break
            self.waiting.popleft()
            if not seq.block_table:
                copy = self._adopt_prefix(seq)
                copies += [copy] if copy else []
            seq.status = SequenceStatus.RUNNING
            self.running.append(seq)
        return copies

    def _has_room_for(self, seq: Sequence) -> bool:
        """True when all of `seq` fits beside what those that run have still to compute, or nothing runs."""
        # Whoever runs goes first: admitting a sequence that cannot get its blocks would only preempt it again.
        if not self.running:
            return True
        num_promised = sum(self.blocks.num_missing(other, other.num_tokens) for other in self.running)
        while self.blocks.num_needed(seq) + num_promised > self.blocks.num_free:
            if not self._release_idle(other_than=seq):
                return False
        return True

    def _adopt_prefix(self, seq: Sequence) -> BlockCopy | None:
        copy = self.blocks.adopt_prefix(seq)
        self.num_prefix_queries += seq.num_tokens
        self.num_prefix_hits += seq.num_computed_tokens
        if seq.num_forwarded == 0:
            seq.num_cached = min(seq.num_computed_tokens, seq.num_prompt_tokens)
        return copy

    def _make_room(self, seq: Sequence, num_new: int) -> bool:
        """Get blocks for `num_new` tokens: from sequences that do not run, then from the youngest that does.

        False: the youngest is `seq` itself, and it has lost its own.
        """
        while not self.blocks.allocate(seq, num_new):
            if self._release_idle():
                continue
            victim = self.running[-1]
            assert len(self.running) > 1, "the pool holds less than one context"
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _release_idle(self, other_than: Sequence | None = None) -> bool:
        """Take the blocks of one sequence that does not run: a parked one, or one that woke and waits for a slot."""
        for seq in chain(reversed(self.parked), reversed(self.waiting)):
            if seq.block_table and seq is not other_than:
                self.blocks.release(seq)
                self.num_preemptions += 1
                return True
        return False

    def _preempt(self, seq: Sequence) -> None:
        """Take a running sequence's blocks; it is computed again, as far as its prefix is gone, when it is back."""
        self.running.remove(seq)
        self.blocks.release(seq)
        self.waiting.appendleft(seq)
        seq.status = SequenceStatus.WAITING
        self.num_preemptions += 1
