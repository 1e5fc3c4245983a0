"""Owns one choice from its request to its one end: engine outputs in, wire-neutral items out. Knows no HTTP.

An output is acted on as it arrives, whoever reads the items: no tool's start waits for a stream to be written.
Server calls run beside the decoding; when a turn ends with some of them pending, their results are injected into
the parked sequence and the same sequence decodes on.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from midstream.errors import DeadlineExceeded, EngineDied
from midstream.gateway.engine_client import EngineClient
from midstream.gateway.items import ClientArguments, ClientCall, ClientCallFailed, Ended, Item
from midstream.messages import (
    AddRequest,
    ArgumentsDelta,
    CallAbandoned,
    CallClosed,
    CallNamed,
    CallRouted,
    ChoiceMode,
    FinishReason,
    Inject,
    ReasoningDelta,
    Resume,
    RunsOn,
    SamplingParams,
    SequenceOutput,
    TextDelta,
    TokenCounts,
    ToolChoice,
    ToolPlan,
    WatchEvent,
)
from midstream.routing.dispatching.dispatcher import CallSet, Dispatcher
from midstream.routing.dispatching.injection import Injector
from midstream.routing.dispatching.server_call import ServerCall
from midstream.routing.dispatching.status import CallResult, CallState, CallStatus
from midstream.telemetry.metrics import Metrics


@dataclass(frozen=True)
class GenerationRequest:
    """What one choice is generated from."""

    token_ids: list[int]
    sampling: SamplingParams
    salt: bytes
    plan: ToolPlan | None = None
    template_tools: list[dict[str, Any]] | None = None
    deadline_s: float = 600.0


@dataclass(frozen=True)
class Services:
    """What every generation needs. One per gateway."""

    engine: EngineClient
    dispatcher: Dispatcher
    injector: Injector
    metrics: Metrics
    max_tool_rounds: int


@dataclass
class _ClientCalls:
    """Client calls by the number that the watch gave them, and what is known of each."""

    wire_index: dict[int, int] = field(default_factory=dict)
    num_complete: int = 0
    has_cut: bool = False
    """A call that the client was shown the beginning of will never be whole."""


class Generation:
    """Runs one choice. `items()` ends with `Ended` or raises; leaving it early aborts everything."""

    def __init__(self, services: Services, request: GenerationRequest) -> None:
        self.token_ids = list(request.token_ids)
        """Every token of the sequence so far: prompt, completion, injections."""
        self._services = services
        self._request = request
        self._request_id = services.engine.next_request_id()
        # Bounded by max_tokens and the tools' progress: a slow client never blocks the engine.
        self._queue: asyncio.Queue[list[Item] | Exception] = asyncio.Queue()
        self._calls: CallSet = services.dispatcher.begin(self._tell)
        self._told_now: list[Item] | None = None
        self._client_calls = _ClientCalls()
        self._num_rounds = 1
        self._waiting: asyncio.Task[None] | None = None
        self._interleaves = request.plan is not None and request.plan.is_interleaved
        self._bringing: set[asyncio.Task[None]] = set()
        """Interleaved: one for each call whose result is not on its way to the engine."""
        self._sent: deque[CallResult] = deque()
        """Results that the engine has and the sequence has not."""
        self._held: list[CallResult] = []
        """Results of a turn that is the client's to go on with."""
        self._has_new_results = False
        self._begins_turn = False
        self._last_character = ""
        self._last_output_s: float | None = None
        self._counts = TokenCounts(0, 0, 0, 0, 0, 0)
        self._finish: tuple[FinishReason, str | int | None] | None = None

    def start(self) -> None:
        """Hand the request to the engine. Raises CapacityError or EngineDied when it is not accepted."""
        request = self._request
        command = AddRequest(self._request_id, request.token_ids, request.sampling, request.salt, request.plan)
        self._services.engine.submit(command, self._take)

    async def items(self) -> AsyncGenerator[Item, None]:
        """Everything that happens, in order. Raises EngineDied or DeadlineExceeded."""
        # One timer for the whole request: a timeout around each wait would cost more than the waits.
        limit_s = self._request.deadline_s
        late = DeadlineExceeded(f"the request took longer than its limit of {limit_s:g} s")
        timer = asyncio.get_running_loop().call_later(limit_s, self._queue.put_nowait, late)
        ended: Ended | None = None
        try:
            while ended is None or not self._queue.empty():
                entry = await self._queue.get()
                if isinstance(entry, Exception):
                    if ended is not None:
                        break
                    raise entry
                for item in entry:
                    if isinstance(item, Ended):
                        ended = item
                    else:
                        yield item
            yield ended
        finally:
            timer.cancel()
            self.cancel()

    def cancel(self) -> None:
        """Stop decoding and every tool that still runs. May be called again."""
        self._services.engine.abort(self._request_id)
        self._calls.cancel()
        for task in (self._waiting, *self._bringing):
            if task is not None:
                task.cancel()

    def _take(self, output: SequenceOutput) -> None:
        """The engine's sink. What goes wrong with one request must not reach the others' outputs."""
        try:
            self._queue.put_nowait(self._on_output(output))
        except Exception as error:
            self._queue.put_nowait(error)

    def _on_output(self, output: SequenceOutput) -> list[Item]:
        self.token_ids += output.token_ids
        self._observe_gap(output)
        # A tool's start stands in the stream where its call stood, however far the decoding has come by now.
        items: list[Item] = []
        self._told_now = items
        for event in output.events:
            self._calls.feed(event)
            items += self._on_event(event)
        if self._interleaves:
            self._bring_results()
        items += self._on_injected(output)
        self._told_now = None
        self._counts = output.counts
        if output.is_parked:
            self._calls.end_turn()
            if not self._interleaves or self._client_calls.num_complete:
                self._wait_for_results()
        elif output.finished is not None:
            finished = output.finished
            if finished.reason is FinishReason.ERROR:
                raise EngineDied(finished.error or "the engine process died")
            self._finish = (finished.reason, finished.stop_reason)
            self._calls.end_turn()
            if self._calls.has_pending or self._bringing:
                # Calls that had closed before a cut run to their end; their results come too late for the model.
                self._wait_for_results()
            else:
                items.append(self._ended())
        return items

    def _tell(self, status: CallStatus) -> None:
        """Take a change in a call's state: in place while an output is read, else as it comes."""
        if self._told_now is not None:
            self._told_now.append(status)
        else:
            self._queue.put_nowait([status])

    def _on_event(self, event: WatchEvent) -> list[Item]:
        calls = self._client_calls
        match event:
            case TextDelta(text):
                return [self._spaced(text)]
            case ReasoningDelta():
                return [event]
            case CallRouted(_, _, RunsOn.SERVER) if self._has_new_results:
                self._num_rounds += 1
                self._has_new_results = False
            case CallRouted(index, _, RunsOn.CLIENT):
                calls.wire_index[index] = -1
            case CallNamed(index, name, call_id) if index in calls.wire_index:
                # Numbered now: a routed call that is abandoned before its name was complete was never shown.
                calls.wire_index[index] = sum(shown >= 0 for shown in calls.wire_index.values())
                return [ClientCall(calls.wire_index[index], name, call_id)]
            case ArgumentsDelta(index, text) if index in calls.wire_index:
                return [ClientArguments(calls.wire_index[index], text)]
            case CallClosed(index) if index in calls.wire_index:
                calls.num_complete += 1
            case CallAbandoned(index, reason, is_cut) if calls.wire_index.get(index, -1) >= 0:
                if not is_cut:
                    return [ClientCallFailed(calls.wire_index[index], reason)]
                calls.has_cut = True
        return []

    def _spaced(self, text: str) -> TextDelta:
        """Text that follows an interleaved result begins a turn of its own: a line of its own, too."""
        is_joined = self._begins_turn and self._last_character.strip() and not text[:1].isspace()
        self._begins_turn = False
        self._last_character = text[-1:]
        return TextDelta("\n" + text if is_joined else text)

    def _bring_results(self) -> None:
        """Each result goes to the engine as soon as it is there."""
        for call in self._calls.take_closed():
            task = asyncio.create_task(self._bring(call), name="tool result")
            self._bringing.add(task)
            task.add_done_callback(self._bringing.discard)

    async def _bring(self, call: ServerCall) -> None:
        result = await call.result()
        if self._client_calls.num_complete or self._finish is not None:
            self._held.append(result)
            return
        try:
            token_ids = self._services.injector.render([result], self._request.template_tools)
        except Exception as error:
            self._queue.put_nowait(error)
            return
        self._sent.append(result)
        self._services.engine.resume(Inject(self._request_id, token_ids, self._next_plan(self._num_rounds + 1)))

    def _on_injected(self, output: SequenceOutput) -> list[Item]:
        self.token_ids += output.injected_token_ids
        if output.num_injects:
            self._has_new_results = self._begins_turn = True
            self._calls.begin_turn()
        return [_injected(self._sent.popleft()) for _ in range(output.num_injects)]

    def _wait_for_results(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            return
        self._waiting = asyncio.create_task(self._gather_results(), name="tool results")

    async def _gather_results(self) -> None:
        if self._bringing:
            await asyncio.wait(set(self._bringing))
        results = [*self._held, *await self._calls.results()]
        try:
            self._queue.put_nowait(self._on_results(results))
        except Exception as error:
            self._queue.put_nowait(error)

    def _on_results(self, results: list[CallResult]) -> list[Item]:
        """Every pending call has ended: inject the results and go on, or end."""
        injector = self._services.injector
        if self._finish is not None:
            return [self._ended()]
        if self._client_calls.num_complete:
            # The client has calls to run as well: the turn is its from here, and its next request goes on from both.
            results = [*self._sent, *results]  # those on their way come too late for this turn
            if results:
                self.token_ids += injector.render(results, self._request.template_tools, is_models_turn=False)
            self._finish = (FinishReason.STOP, None)
            return [self._ended()]
        self._num_rounds += 1
        token_ids = injector.render(results, self._request.template_tools)
        self.token_ids += token_ids
        self._services.engine.resume(Resume(self._request_id, token_ids, self._next_plan(self._num_rounds)))
        return [_injected(result) for result in results]

    def _next_plan(self, round_number: int) -> ToolPlan | None:
        """Later rounds are auto, the last one none. A template that opened the reasoning opens it in each turn."""
        plan = self._request.plan
        assert plan is not None
        is_last = round_number > self._services.max_tool_rounds
        mode = ChoiceMode.NONE if is_last else ChoiceMode.AUTO
        return msgspec.structs.replace(plan, choice=ToolChoice(mode))

    def _ended(self) -> Ended:
        assert self._finish is not None
        reason, stop_reason = self._finish
        # After a cut (a stop string in a call's arguments, say) the client is not to run anything.
        if reason is FinishReason.STOP and self._client_calls.num_complete and not self._client_calls.has_cut:
            # OpenAI's own rule: `stop` for a named tool_choice.
            is_named = self._request.plan is not None and len(self._request.plan.choice.names) == 1
            is_named = is_named and self._num_rounds == 1
            reason = FinishReason.STOP if is_named else FinishReason.TOOL_CALLS
        return Ended(reason, stop_reason, self._counts)

    def _observe_gap(self, output: SequenceOutput) -> None:
        now_s = time.monotonic()
        if self._last_output_s is not None and output.token_ids:
            self._services.metrics.inter_token.observe(now_s - self._last_output_s)
        self._last_output_s = now_s


def _injected(result: CallResult) -> CallStatus:
    return CallStatus(result.call_id, result.name, CallState.INJECTED, f"{result.name}: the model has its result")
