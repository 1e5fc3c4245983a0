"""Owns what one sequence does in one step: tokens appended, events told, and whether it ends. Schedules nothing."""

from midstream.engine.sequence import Sequence
from midstream.messages import CallReady, Finished, FinishReason, Inject, Mark, SequenceOutput, WatchEvent


class Turn:
    """Collects one sequence's output of a step, on the way: append → Detokenizer → StopMatcher → TokenWatch."""

    def __init__(self, seq: Sequence, now_ns: int) -> None:
        self.seq = seq
        self.token_ids: list[int] = []
        self.events: list[WatchEvent] = []
        self.is_parked = False
        self.injected: list[int] = []
        self.num_injects = 0
        self.finished: Finished | None = None
        self.now_ns = now_ns
        """When the tokens that are appended next were sampled."""

    @property
    def has_ended(self) -> bool:
        return self.is_parked or self.finished is not None

    @property
    def is_empty(self) -> bool:
        return not (self.token_ids or self.events or self.injected or self.has_ended)

    def append(self, token_id: int) -> None:
        self.seq.append_generated(token_id)
        self.token_ids.append(token_id)

    def feed(self, token_id: int, *, looks_for_stop: bool) -> None:
        """Show the appended token to the watch, less the text that may belong to a stop string."""
        text = self.seq.detokenizer.feed(token_id)
        if not looks_for_stop:
            self.events += self.seq.watch.feed(token_id, text, self._mark())
            return
        found = self.seq.stop.feed(text)
        matched = found.matched
        shown = found.text + (matched if matched and self.seq.sampling.include_stop else "")
        self.events += self.seq.watch.feed(token_id, shown, self._mark())
        if matched is not None:
            self.events += self.seq.watch.cut("", self._mark())
            self.finished = Finished(FinishReason.STOP, matched)

    def end(self, reason: FinishReason, stop_reason: int | None = None) -> None:
        """End the turn at the token before; a turn that the model ended parks when its calls await results."""
        seq = self.seq
        tail = seq.detokenizer.finish()
        text = seq.stop.finish() + tail
        if reason is FinishReason.STOP:
            self.events += seq.watch.end_turn(text, self._mark())
            self.is_parked = seq.awaits_results
        else:
            self.events += seq.watch.cut(text, self._mark())
        if not self.is_parked:
            self.finished = Finished(reason, stop_reason)

    def inject(self, end_token_id: int) -> Inject:
        """Put in the oldest result that waits. A turn that the model has not ended is ended first."""
        seq, command = self.seq, self.seq.injects.popleft()
        token_ids = command.token_ids
        if command.tool_plan is not None and command.tool_plan.end_token_id is not None:
            end_token_id = command.tool_plan.end_token_id
        if self.is_parked:
            self.is_parked = False
        else:
            self.events += seq.watch.end_turn("", self._mark())
            token_ids = [end_token_id, *token_ids]
        seq.num_awaited += len(seq.watch.server_calls) - 1
        seq.inject(token_ids)
        self.injected += token_ids
        self.num_injects += 1
        return command

    @property
    def starts_tool(self) -> bool:
        """True when a call's arguments have become complete: its tool may run."""
        return any(isinstance(event, CallReady) for event in self.events)

    def take(self) -> SequenceOutput:
        """What has been collected so far, for whoever cannot wait for the rest."""
        output = self.output()
        self.token_ids, self.events = [], []
        return output

    def output(self) -> SequenceOutput:
        return SequenceOutput(
            self.seq.request_id,
            self.token_ids,
            self.events,
            self.seq.counts,
            self.injected,
            self.num_injects,
            self.is_parked,
            self.finished,
        )

    def _mark(self) -> Mark:
        seq = self.seq
        return Mark(
            pass_number=seq.num_passes - seq.turn_start_passes,
            token_index=seq.num_generated - seq.turn_start_generated,
            time_ns=self.now_ns,
        )
