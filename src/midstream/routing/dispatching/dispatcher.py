"""Owns the server calls of every stream: opens, starts, cancels and gathers them. Never touches HTTP or tokens."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from midstream.messages import (
    CallAbandoned,
    CallClosed,
    CallNamed,
    CallPartial,
    CallReady,
    CallRouted,
    RunsOn,
    ToolSpec,
    WatchEvent,
)
from midstream.routing.dispatching.guard import Guard
from midstream.routing.dispatching.server_call import Notify, ServerCall
from midstream.routing.dispatching.shared_run import SharedRun
from midstream.routing.dispatching.status import CallResult
from midstream.telemetry.metrics import Metrics
from midstream.tools.transport import Transport


@dataclass(frozen=True)
class ServerTool:
    spec: ToolSpec
    transport: Transport


class Dispatcher:
    """Knows which transport reaches which tool. One per gateway."""

    def __init__(
        self,
        tools: Mapping[str, ServerTool],
        *,
        timeout_s: float,
        budget_s: float,
        metrics: Metrics,
        new_call_id: Callable[[str, int], str],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.tools = tools
        self.now_ns = now_ns
        self.budget_s = budget_s
        self._guards = {
            name: Guard(
                tool.spec,
                tool.transport,
                timeout_s=tool.spec.annotations.timeout_s or timeout_s,
                on_retry=metrics.tools_retried.labels(name).inc,
            )
            for name, tool in tools.items()
        }
        self._metrics = metrics
        self._new_call_id = new_call_id

    def begin(self, notify: Notify) -> "CallSet":
        """The calls of one stream; `notify` is called on the event loop at every change of a call's state."""
        return CallSet(self, notify)

    def timeout_s(self, name: str) -> float:
        """The longest run of a tool."""
        return self._guards[name].timeout_s

    def open(
        self, routed: CallRouted, notify: Notify, shared: dict[bytes, SharedRun], *, timeout_s: float
    ) -> ServerCall:
        return ServerCall(
            routed,
            self._guards[routed.name],
            shared,
            call_id=self._new_call_id(routed.name, routed.index),
            timeout_s=timeout_s,
            notify=notify,
            metrics=self._metrics,
            now_ns=self.now_ns,
        )


class CallSet:
    """The server calls of one stream, by their number in it."""

    def __init__(self, dispatcher: Dispatcher, notify: Notify) -> None:
        self._dispatcher = dispatcher
        self._notify = notify
        self._calls: dict[int, ServerCall] = {}
        self._pending: list[ServerCall] = []
        self._shared: dict[bytes, SharedRun] = {}

    @property
    def has_pending(self) -> bool:
        """True while closed calls have results that the model has not seen."""
        return bool(self._pending)

    def feed(self, event: WatchEvent) -> None:
        """Move the call on that the event belongs to; events of client calls are nobody's here."""
        if isinstance(event, CallRouted) and event.runs_on is RunsOn.SERVER:
            self._open(event)
            return
        call = self._calls.get(getattr(event, "index", -1))
        if call is None:
            return
        match event:
            case CallNamed():
                call.named(event.call_id)
            case CallPartial():
                call.partial(event)
            case CallReady():
                call.ready(event)
            case CallClosed():
                call.closed()
                self._pending.append(call)
            case CallAbandoned():
                call.abandon(event.reason)

    def _open(self, event: CallRouted) -> None:
        """A call's limit is its tool's, or what is left of the request's time for tools."""
        now_ns = self._dispatcher.now_ns()
        spent_s = sum(call.run_ns(now_ns) for call in self._calls.values()) / 1e9
        timeout_s = min(self._dispatcher.timeout_s(event.name), self._dispatcher.budget_s - spent_s)
        self._calls[event.index] = self._dispatcher.open(event, self._notify, self._shared, timeout_s=timeout_s)

    def begin_turn(self) -> None:
        """The model has seen results: it may ask again what it has asked before."""
        self._shared = {}

    def end_turn(self) -> None:
        """The turn is decoded: what still runs overlaps with nothing from here on."""
        self.begin_turn()
        for call in self._calls.values():
            call.decoding_ended(self._dispatcher.now_ns())

    def take_closed(self) -> list[ServerCall]:
        """The closed calls whose results nobody has asked for; whoever takes them waits for them."""
        taken, self._pending = self._pending, []
        return taken

    async def results(self) -> list[CallResult]:
        """Wait for every closed call whose result the model has not seen, in the order of the calls."""
        return list(await asyncio.gather(*(call.result() for call in self.take_closed())))

    def cancel(self) -> None:
        """Cancel whatever runs. May be called again."""
        for call in self._calls.values():
            call.cancel()
