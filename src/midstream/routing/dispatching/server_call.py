"""Owns one server call from ROUTED to its outcome. Never decides when it may run: the watch does."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import structlog

from midstream.errors import ToolCancelled, ToolError, ToolTimedOut
from midstream.messages import CallPartial, CallReady, CallRouted
from midstream.protocol.btif import Layout, arguments_json
from midstream.routing.dispatching.guard import Guard, RefusedCall
from midstream.routing.dispatching.shared_run import SharedRun
from midstream.routing.dispatching.status import OUTCOMES, CallResult, CallState, CallStatus
from midstream.telemetry.metrics import Metrics
from midstream.tools.transport import CallHandle

log = structlog.get_logger()

Notify = Callable[[CallStatus], None]

_LEAST_S = 0.001

_ENDINGS = {
    CallState.DONE: "finished",
    CallState.FAILED: "failed",
    CallState.TIMED_OUT: "timed out",
    CallState.CANCELLED: "was cancelled",
    CallState.ABANDONED: "was not called",
}


class ServerCall:
    """A tool's run beside the decoding. Everything happens on the gateway's event loop."""

    def __init__(
        self,
        routed: CallRouted,
        guard: Guard,
        shared: dict[bytes, SharedRun],
        *,
        call_id: str,
        timeout_s: float,
        notify: Notify,
        metrics: Metrics,
        now_ns: Callable[[], int],
    ) -> None:
        self.call_id = call_id
        self.spec = spec = guard.spec
        self.arguments: dict[str, Any] = {}
        self.state = CallState.ROUTED
        self.text = ""
        self._guard = guard
        self._shared = shared
        self._timeout_s = timeout_s
        self._notify = notify
        self._metrics = metrics
        self._now_ns = now_ns
        self._layout = Layout.of(spec.parameters)
        self._is_named = False
        self._closed = asyncio.Event()
        self._num_runs = 0
        self._handle: CallHandle = self._open()
        self._run: SharedRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._started_ns: int | None = None
        self._ended_ns: int | None = None
        self._decoding_ended_ns: int | None = None
        metrics.tools_routed.labels(spec.name).inc()
        metrics.passes_to_route.observe(routed.mark.pass_number)

    def named(self, call_id: str | None) -> None:
        """The name is complete: the client may see it, under the model's own id if it gave one."""
        self.call_id = call_id or self.call_id
        self._is_named = True
        self._tell(CallState.ROUTED, f"Calling {self.spec.name}")

    def partial(self, event: CallPartial) -> None:
        """Pass the piece on; a run that has begun has its arguments."""
        if self._run is None:
            self._handle.partial(event.field_index, event.text)

    def ready(self, event: CallReady) -> None:
        """Start the run. A new frame replaces a run that was started on an earlier one."""
        name = self.spec.name
        if self._task is None:
            self._metrics.tools_ready.labels(name).inc()
        else:
            self._cancel_run()
            self._handle = self._open()
        self._run = run = self._started_run(event.frame)
        self._started_ns = self._now_ns()
        self.arguments = _json_values(arguments_json(event.frame, self._layout))
        self._task = asyncio.create_task(self._wait(run), name=f"tool {name}")
        self._metrics.dispatch_overhead.observe((self._started_ns - event.mark.time_ns) / 1e9)
        self._metrics.passes_to_dispatch.observe(event.mark.pass_number)
        self._tell(CallState.RUNNING, f"{name} is running")

    def run_ns(self, now_ns: int) -> int:
        """How long its tool has run."""
        return 0 if self._started_ns is None else (self._ended_ns or now_ns) - self._started_ns

    def closed(self) -> None:
        """The call is whole and valid: the run that was started last is the one that counts."""
        self._closed.set()

    def decoding_ended(self, time_ns: int) -> None:
        """The turn is over: from here on the tool runs beside nothing."""
        if self._decoding_ended_ns is None:
            self._decoding_ended_ns = time_ns

    def abandon(self, reason: str) -> None:
        """It was no call, or it was cut: whatever runs is cancelled and its result never used."""
        self._cancel_run()
        self._end(CallState.ABANDONED, reason, self._now_ns())

    def cancel(self) -> None:
        """The client has gone."""
        self._cancel_run()
        self._end(CallState.CANCELLED, "cancelled", self._now_ns())

    async def result(self) -> CallResult:
        """Wait for the outcome. Never raises for a tool's fault: that is text for the model."""
        assert self._task is not None, "a closed call has been dispatched"
        await asyncio.wait({self._task})
        return CallResult(self.call_id, self.spec.name, self.arguments, self.text)

    def _open(self) -> CallHandle:
        if self._timeout_s < _LEAST_S:
            return RefusedCall("not called: the request's time for tools is spent")
        self._num_runs += 1
        number = self._num_runs

        def on_progress(percent: int | None, text: str) -> None:
            if number == self._num_runs and self.state not in OUTCOMES:
                description = text or f"{self.spec.name} is running"
                self._tell(CallState.PROGRESS, description if percent is None else f"{description} ({percent} %)")

        return self._guard.open(int(self._timeout_s * 1000), on_progress)

    def _started_run(self, frame: bytes) -> SharedRun:
        """The run of this frame: that of an equal call of the turn if nothing can differ, else a new one."""
        is_read_only = self.spec.annotations.read_only
        run = self._shared.get(frame) if is_read_only else None
        if run is not None and run.is_open:
            self._handle.cancel()
            self._metrics.tools_shared.labels(self.spec.name).inc()
        else:
            self._handle.start(frame)
            run = SharedRun(self._handle, f"run {self.spec.name}")
            self._metrics.tools_dispatched.labels(self.spec.name).inc()
            if is_read_only:
                self._shared[frame] = run
            else:
                self._shared.clear()  # what it changes may be what was read
        run.join()
        return run

    async def _wait(self, run: SharedRun) -> None:
        state, text = await self._outcome(run)
        ended_ns = self._now_ns()
        # Until the call has closed, another argument may replace this run, and a cut discard it.
        await self._closed.wait()
        self._end(state, text, ended_ns)

    async def _outcome(self, run: SharedRun) -> tuple[CallState, str]:
        """How the run ended: the result's text, or what went wrong."""
        try:
            result = await run.result()
        except ToolTimedOut:
            return CallState.TIMED_OUT, f"timed out after {self._timeout_s:g} s"
        except ToolCancelled as error:
            return CallState.CANCELLED, error.message
        except ToolError as error:
            return CallState.FAILED, error.message
        return CallState.DONE, result.content.decode("utf-8", "replace")

    def _end(self, state: CallState, text: str, ended_ns: int) -> None:
        """Note the one outcome; later ones are ignored."""
        if self.state in OUTCOMES:
            return
        self.text = text if state is CallState.DONE else f"error: {text}"
        self._metrics.tools_finished.labels(self.spec.name, state.value).inc()
        self._ended_ns = ended_ns
        if self._started_ns is not None:
            self._metrics.time_to_result.labels(self.spec.name).observe((ended_ns - self._started_ns) / 1e9)
            overlap_ns = min(ended_ns, self._decoding_ended_ns or ended_ns) - self._started_ns
            self._metrics.tool_overlap.observe(max(0, overlap_ns) / 1e9)
        log.info("tool_call_finished", tool=self.spec.name, outcome=state.value)
        if state is CallState.DONE:
            self._tell(state, f"{self.spec.name} {_ENDINGS[state]}", result=text)
        else:
            self._tell(state, f"{self.spec.name} {_ENDINGS[state]}", error=text)

    def _cancel_run(self) -> None:
        if self._run is None:
            self._handle.cancel()
        else:
            self._run.leave()
            self._run = None
        if self._task is not None:
            self._task.cancel()

    def _tell(self, state: CallState, description: str, *, result: str | None = None, error: str | None = None) -> None:
        self.state = state
        if not self._is_named:
            return  # what the client never saw called needs no end
        shown = self.arguments if state is not CallState.ROUTED and self._task is not None else None
        self._notify(CallStatus(self.call_id, self.spec.name, state, description, shown, result, error))


def _json_values(text: str) -> dict[str, Any]:
    """The arguments as every JSON writer takes them: a number beyond 64 bits is its text."""
    values: dict[str, Any] = json.loads(text, parse_int=_int_or_text, parse_float=_float_or_text)
    return values


def _int_or_text(literal: str) -> int | str:
    number = int(literal)
    return number if -(1 << 63) <= number < 1 << 63 else literal


def _float_or_text(literal: str) -> float | str:
    number = float(literal)
    return number if math.isfinite(number) else literal
