"""Owns the engine's state and its step. Never does tensor maths, never parses text, never blocks on a reader."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import takewhile
from typing import Protocol

from midstream.engine.batch import Batch, Row
from midstream.engine.detokenizer import Detokenizer
from midstream.engine.scheduler import Scheduler
from midstream.engine.sequence import Drafter, Sequence, SequenceStatus
from midstream.engine.turn import Turn
from midstream.engine.watch import WatchFactory
from midstream.messages import (
    Abort,
    AddRequest,
    Command,
    EngineStats,
    FinishReason,
    Inject,
    Resume,
    SequenceOutput,
    StepOutput,
)


class Port(Protocol):
    """The engine's end of the connection to the gateway."""

    def receive(self) -> list[Command]:
        """Commands that have come; never blocks."""

    def wait(self) -> None:
        """Block until a command comes. Raises EOFError when the gateway is gone."""

    def send(self, output: StepOutput) -> None:
        """Hand over a step's output; never blocks, never drops."""


class Logits(Protocol):
    """What a forward pass predicts: `num_logits` rows for each row of its batch, in order."""

    def sample(self, index: int, seq: Sequence) -> int:
        """The token after all of `seq`, from row `index`."""


class Runner(Protocol):
    """Computes a batch."""

    def execute(self, batch: Batch) -> Logits:
        """Run the forward pass. What it gives is valid until the next one."""


class Engine:
    """The loop. One thread owns it and everything it holds."""

    def __init__(
        self,
        port: Port,
        scheduler: Scheduler,
        runner: Runner,
        *,
        make_watch: WatchFactory,
        token_bytes: list[bytes],
        eos_token_ids: tuple[int, ...],
        max_model_len: int,
        make_drafter: Callable[[], Drafter] | None = None,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        self.port = port
        self.scheduler = scheduler
        self.runner = runner
        self.make_watch = make_watch
        self.token_bytes = token_bytes
        self.eos_token_ids = frozenset(eos_token_ids)
        self.end_token_id = eos_token_ids[0]
        self.max_model_len = max_model_len
        self.make_drafter = make_drafter
        self.on_idle = on_idle
        self.sequences: dict[int, Sequence] = {}
        self.num_drafted = 0
        self.num_drafts_accepted = 0
        self._outputs: list[SequenceOutput] = []

    def run(self) -> None:
        """Step until the gateway is gone (EOFError)."""
        while True:
            self.step()

    def step(self) -> None:
        self.receive()
        batch = self.scheduler.schedule()
        if batch is None:
            return self.wait()
        logits = self.execute(batch)
        self.publish(self.commit(batch, logits))

    def receive(self) -> None:
        for command in self.port.receive():
            match command:
                case AddRequest():
                    self._add(command)
                case Abort():
                    self._abort(command)
                case Resume():
                    self._resume(command)
                case Inject():
                    self._take_result(command)

    def wait(self) -> None:
        self.publish([])
        self.on_idle()
        self.port.wait()

    def execute(self, batch: Batch) -> Logits:
        start_s = time.perf_counter()
        logits = self.runner.execute(batch)
        self.scheduler.pacer.observe(batch, time.perf_counter() - start_s)
        return logits

    def commit(self, batch: Batch, logits: Logits) -> list[SequenceOutput]:
        """Move every sequence on: by what was computed, and, if it reached its last token, by what is sampled."""
        outputs: list[SequenceOutput] = []
        index = 0
        for row in batch.rows:
            num_logits = row.num_logits
            if num_logits == 0:
                self._count(row.seq, row.num_new)
                continue
            outputs.append(self._advance(row, logits, index))
            index += num_logits
        return outputs

    def publish(self, outputs: list[SequenceOutput]) -> None:
        outputs = self._outputs + outputs
        self._outputs = []
        if outputs:
            self.port.send(StepOutput(outputs, self._stats()))

    def _advance(self, row: Row, logits: Logits, index: int) -> SequenceOutput:
        """Sample after the row's last token, and on for as long as what comes is what was drafted."""
        seq, drafts = row.seq, row.drafts
        seq.num_passes += 1
        turn = Turn(seq, time.monotonic_ns())
        num_right, has_logits = 0, True
        while has_logits and not (turn.has_ended or self._may_inject(turn)):
            token_id = logits.sample(index + num_right, seq)
            turn.now_ns = time.monotonic_ns()
            self._extend(turn, [token_id])
            num_before = num_right
            num_right += num_equal(drafts[num_right:], seq.token_ids[row.end + num_right :])
            has_logits = num_right > num_before and row.end + num_right == seq.num_tokens
        # The last token is never counted: what resumes after it needs its logits.
        self._count(seq, min(row.num_new + num_right, seq.num_pending - 1))
        if drafts:
            self._observe_drafts(seq, len(drafts), num_right)
        self._inject(turn)
        return self._settle(turn)

    def _count(self, seq: Sequence, num_computed: int) -> None:
        seq.num_computed_tokens += num_computed
        seq.num_forwarded += num_computed
        self.scheduler.blocks.record(seq)

    def _observe_drafts(self, seq: Sequence, num_proposed: int, num_accepted: int) -> None:
        assert seq.drafter is not None
        seq.drafter.observe(num_proposed, num_accepted)
        self.num_drafted += num_proposed
        self.num_drafts_accepted += num_accepted

    def _begin_turn(self, seq: Sequence) -> None:
        """Tokens that the grammar forces before anything is sampled are computed together with the prompt."""
        turn = Turn(seq, time.monotonic_ns())
        if self._has_no_room(seq):
            turn.end(FinishReason.LENGTH)
        else:
            self._extend(turn, seq.watch.forced_tokens(), is_forced=True)
        output = self._settle(turn)
        if not turn.is_empty:
            self._outputs.append(output)

    def _extend(self, turn: Turn, token_ids: list[int], *, is_forced: bool = False) -> None:
        """Append tokens and every token that they force, until nothing is forced or the turn ends."""
        while token_ids:
            for token_id in token_ids:
                self._append(turn, token_id, is_forced=is_forced)
                if turn.has_ended:
                    return
            token_ids, is_forced = turn.seq.watch.forced_tokens(), True

    def _append(self, turn: Turn, token_id: int, *, is_forced: bool) -> None:
        seq, sampling = turn.seq, turn.seq.sampling
        turn.append(token_id)
        allows_stop = seq.num_generated > sampling.min_tokens
        # `ignore_eos` is for what the model samples: after an end that the grammar forces nothing else can come.
        if token_id in self.eos_token_ids and (is_forced or not sampling.ignore_eos):
            return turn.end(FinishReason.STOP)
        if token_id in sampling.stop_token_ids and allows_stop:
            return turn.end(FinishReason.STOP, token_id)
        turn.feed(token_id, looks_for_stop=allows_stop)
        if turn.starts_tool and not turn.has_ended:
            # A tool that can start does not wait for the tokens that still close its call, nor for other sequences.
            self.publish([turn.take()])
        if not turn.has_ended and self._has_no_room(seq):
            turn.end(FinishReason.LENGTH)

    def _has_no_room(self, seq: Sequence) -> bool:
        return seq.num_generated >= seq.sampling.max_tokens or seq.num_tokens >= self.max_model_len

    def _settle(self, turn: Turn) -> SequenceOutput:
        """Let the scheduler know how the turn ended, if it did."""
        if turn.is_parked:
            self.scheduler.park(turn.seq)
        elif turn.finished is not None:
            self._forget(turn.seq)
        return turn.output()

    def _add(self, request: AddRequest) -> None:
        watch = self.make_watch(request.tool_plan, 0)
        drafter = None if self.make_drafter is None else self.make_drafter()
        seq = Sequence(request, watch, Detokenizer(self.token_bytes), drafter)
        self.sequences[seq.request_id] = seq
        self.scheduler.add(seq)
        self._begin_turn(seq)

    def _abort(self, command: Abort) -> None:
        seq = self.sequences.get(command.request_id)
        if seq is not None:
            turn = Turn(seq, time.monotonic_ns())
            turn.end(FinishReason.ABORT)
            self._outputs.append(self._settle(turn))

    def _resume(self, command: Resume) -> None:
        seq = self.sequences.get(command.request_id)
        if seq is None or seq.status is not SequenceStatus.PARKED:
            return
        self.scheduler.wake(seq)
        seq.inject(command.token_ids)
        seq.num_awaited = 0
        seq.watch = self.make_watch(command.tool_plan, seq.watch.num_calls)
        self._begin_turn(seq)

    def _take_result(self, command: Inject) -> None:
        seq = self.sequences.get(command.request_id)
        if seq is None:
            return
        seq.injects.append(command)
        turn = Turn(seq, time.monotonic_ns())
        turn.is_parked = seq.status is SequenceStatus.PARKED
        if not self._may_inject(turn):
            return
        if turn.is_parked:
            self.scheduler.wake(seq)
        self._inject(turn)
        self._outputs.append(self._settle(turn))

    def _may_inject(self, turn: Turn) -> bool:
        seq = turn.seq
        if not seq.injects or turn.finished is not None or seq.watch.has_client_calls:
            return False
        return turn.is_parked or seq.is_at_result or seq.is_at_boundary

    def _inject(self, turn: Turn) -> None:
        """Put in every result that waits, if it may be done here; the model then writes a turn of its own."""
        if not self._may_inject(turn):
            return
        while turn.seq.injects:
            command = turn.inject(self.end_token_id)
            turn.seq.watch = self.make_watch(command.tool_plan, turn.seq.watch.num_calls)
        if self._has_no_room(turn.seq):
            turn.end(FinishReason.LENGTH)

    def _forget(self, seq: Sequence) -> None:
        del self.sequences[seq.request_id]
        self.scheduler.remove(seq)

    def _stats(self) -> EngineStats:
        scheduler, blocks = self.scheduler, self.scheduler.blocks
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_parked=len(scheduler.parked),
            num_blocks=blocks.num_blocks,
            num_free_blocks=blocks.num_free,
            prefix_queries=scheduler.num_prefix_queries,
            prefix_hits=scheduler.num_prefix_hits,
            preemptions=scheduler.num_preemptions,
            drafted=self.num_drafted,
            drafts_accepted=self.num_drafts_accepted,
            parked_kept=scheduler.parking.num_kept,
            parked_released=scheduler.parking.num_released,
        )


def num_equal(drafts: Items[int], token_ids: Items[int]) -> int:
    """How many of `drafts` stand at the head of `token_ids`, up to the first that does not."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafts, token_ids, strict=False)))
