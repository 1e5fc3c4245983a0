"""Owns one server call from ROUTED to its outcome. Never decides when it may run: the watch does."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog

from midstream.errors import ToolCancelled, ToolError, ToolTimedOut
from midstream.messages import CallReady, CallRouted, ToolSpec
from midstream.protocol.btif import Layout, decode_arguments
from midstream.routing.dispatching.status import OUTCOMES, CallResult, CallState, CallStatus
from midstream.telemetry.metrics import Metrics
from midstream.tools.transport import CallHandle, Transport

log = structlog.get_logger()

Notify = Callable[[CallStatus], None]


class ServerCall:
    """A tool's run beside the decoding. Everything happens on the gateway's event loop."""

    def __init__(
        self,
        routed: CallRouted,
        spec: ToolSpec,
        transport: Transport,
        *,
        call_id: str,
        timeout_s: float,
        notify: Notify,
        metrics: Metrics,
    ) -> None:
        self.call_id = call_id
        self.spec = spec
        self.is_closed = False
        self.arguments: dict[str, Any] = {}
        self.state = CallState.ROUTED
        self.text = ""
        self._transport = transport
        self._timeout_s = spec.annotations.timeout_s or timeout_s
        self._notify = notify
        self._metrics = metrics
        self._layout = Layout.of(spec.parameters)
        self._handle: CallHandle = self._open()
        self._task: asyncio.Task[None] | None = None
        self._started_ns = 0
        self._decoding_ended_ns: int | None = None
        metrics.tools_routed.labels(spec.name).inc()
        metrics.passes_to_route.observe(routed.mark.pass_number)

    def named(self) -> None:
        """The name is complete: the client may see it."""
        self._tell(CallState.ROUTED, f"Calling {self.spec.name}")

    def partial(self, text: str) -> None:
        """Raw arguments text for a tool that takes it as it is decoded."""
        # The argument's index is not known from raw text alone; tools see the object's text under index 0.
        self._handle.partial(0, text)

    def ready(self, event: CallReady) -> None:
        """Start the run. A new frame replaces a run that was started on an earlier one."""
        name = self.spec.name
        if self._task is not None:
            self._task.cancel()
            self._handle.cancel()
            self._handle = self._open()
        self.arguments = decode_arguments(event.frame, self._layout)
        self._started_ns = time.monotonic_ns()
        self._task = asyncio.create_task(self._run(self._handle, event.frame), name=f"tool {name}")
        self._metrics.tools_ready.labels(name).inc()
        self._metrics.tools_dispatched.labels(name).inc()
        self._metrics.passes_to_dispatch.observe(event.mark.pass_number)
        self._tell(CallState.RUNNING, f"{name} is running")

    def closed(self) -> None:
        self.is_closed = True

    def decoding_ended(self, time_ns: int) -> None:
        """The turn is over: from here on the tool runs beside nothing."""
        if self._decoding_ended_ns is None:
            self._decoding_ended_ns = time_ns

    def abandon(self, reason: str) -> None:
        """It was no call, or it was cut: whatever runs is cancelled and its result never used."""
        self._cancel_run()
        self._end(CallState.ABANDONED, f"{self.spec.name} was not called", error=reason)

    def cancel(self) -> None:
        """The client has gone."""
        self._cancel_run()
        self._end(CallState.CANCELLED, f"{self.spec.name} was cancelled", error="cancelled")

    async def result(self) -> CallResult:
        """Wait for the outcome. Never raises for a tool's fault: that is text for the model."""
        assert self._task is not None, "a closed call has been dispatched"
        await asyncio.wait({self._task})
        return CallResult(self.call_id, self.spec.name, self.arguments, self.text)

    def _open(self) -> CallHandle:
        return self._transport.open(self.spec.tool_id, int(self._timeout_s * 1000), self._on_progress)

    async def _run(self, handle: CallHandle, frame: bytes) -> None:
        name = self.spec.name
        try:
            result = await handle.run(frame)
        except ToolTimedOut:
            self._end(CallState.TIMED_OUT, f"{name} timed out", error=f"timed out after {self._timeout_s:g} s")
        except ToolCancelled as error:
            self._end(CallState.CANCELLED, f"{name} was cancelled", error=error.message)
        except ToolError as error:
            self._end(CallState.FAILED, f"{name} failed", error=error.message)
        else:
            self._end(CallState.DONE, f"{name} finished", result=result.content.decode("utf-8", "replace"))

    def _end(self, state: CallState, description: str, *, result: str | None = None, error: str | None = None) -> None:
        if self.state in OUTCOMES:
            return
        self.text = result if result is not None else f"error: {error}"
        now_ns = time.monotonic_ns()
        self._metrics.tools_finished.labels(self.spec.name, state.value).inc()
        if self._started_ns:
            self._metrics.time_to_result.labels(self.spec.name).observe((now_ns - self._started_ns) / 1e9)
            overlap_ns = min(now_ns, self._decoding_ended_ns or now_ns) - self._started_ns
            self._metrics.tool_overlap.observe(max(0, overlap_ns) / 1e9)
        log.info("tool_call_finished", tool=self.spec.name, outcome=state.value)
        self._tell(state, description, result=result, error=error)

    def _cancel_run(self) -> None:
        self._handle.cancel()
        if self._task is not None:
            self._task.cancel()

    def _on_progress(self, percent: int | None, text: str) -> None:
        if self.state not in OUTCOMES:
            description = text or f"{self.spec.name} is running"
            self._tell(CallState.PROGRESS, description, percent=percent)

    def _tell(
        self,
        state: CallState,
        description: str,
        *,
        result: str | None = None,
        error: str | None = None,
        percent: int | None = None,
    ) -> None:
        self.state = state
        shown = self.arguments if state is not CallState.ROUTED and self._task is not None else None
        self._notify(CallStatus(self.call_id, self.spec.name, state, description, shown, result, error, percent))
