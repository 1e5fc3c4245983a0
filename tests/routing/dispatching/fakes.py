"""Owns a transport that tests hold in their hands, and the calls of one stream on it. Runs no tool."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from midstream.messages import (
    CallClosed,
    CallNamed,
    CallReady,
    CallRouted,
    Mark,
    RunsOn,
    ToolAnnotations,
    ToolSpec,
    WatchEvent,
)
from midstream.protocol.btif import Layout, encode, tool_id
from midstream.routing.dispatching.dispatcher import CallSet, Dispatcher, ServerTool
from midstream.routing.dispatching.status import CallStatus
from midstream.telemetry.metrics import Metrics
from midstream.tools.transport import OnProgress, ToolResult

MS = 1_000_000
CAREFUL = ToolAnnotations()


class FakeCall:
    """One opened call: it ends when the test says so, or when it is cancelled."""

    def __init__(self, tool: int, deadline_ms: int, on_progress: OnProgress) -> None:
        self.tool = tool
        self.deadline_ms = deadline_ms
        self.progress = on_progress
        self.frames: list[bytes] = []
        self.num_cancels = 0
        self.was_interrupted = False
        self._ended: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()

    def partial(self, field_index: int, text: str) -> None:
        raise AssertionError("no tool takes its arguments in part yet")

    def start(self, frame: bytes) -> None:
        self.frames.append(frame)

    async def result(self) -> ToolResult:
        try:
            return await self._ended
        except asyncio.CancelledError:
            self.was_interrupted = True
            raise

    def cancel(self) -> None:
        self.num_cancels += 1

    def give(self, text: str | bytes) -> None:
        content = text.encode() if isinstance(text, str) else text
        self._ended.set_result(ToolResult("text/plain", content))

    def fail(self, error: Exception) -> None:
        self._ended.set_exception(error)


class FakeTransport:
    def __init__(self) -> None:
        self.calls: list[FakeCall] = []

    async def start(self) -> None:
        pass

    def open(self, tool_id: int, deadline_ms: int, on_progress: OnProgress | None = None) -> FakeCall:
        assert on_progress is not None
        self.calls.append(FakeCall(tool_id, deadline_ms, on_progress))
        return self.calls[-1]

    async def close(self) -> None:
        pass


class Stream:
    """One stream's calls, on fake tools and a clock that the test moves."""

    def __init__(self, *tools: ToolSpec, timeout_s: float = 30.0, budget_s: float = 600.0) -> None:
        self.transport = FakeTransport()
        self.metrics = Metrics()
        self.told: list[CallStatus] = []
        self.now_ns = 1000 * MS
        self._tools = {tool.name: tool for tool in tools}
        self._num_ids = 0
        dispatcher = Dispatcher(
            {tool.name: ServerTool(tool, self.transport) for tool in tools},
            timeout_s=timeout_s,
            budget_s=budget_s,
            metrics=self.metrics,
            new_call_id=self._new_id,
            now_ns=lambda: self.now_ns,
        )
        self.calls: CallSet = dispatcher.begin(self.told.append)

    @property
    def states(self) -> list[str]:
        return [status.state.value for status in self.told]

    @property
    def runs(self) -> list[FakeCall]:
        """What was opened, in order."""
        return self.transport.calls

    def feed(self, *events: WatchEvent) -> None:
        for event in events:
            self.calls.feed(event)

    def route(self, name: str = "x", index: int = 0) -> None:
        self.feed(CallRouted(index, name, RunsOn.SERVER, self.mark(pass_number=3)), CallNamed(index, name))

    def ready(self, arguments: str = '{"a": 1}', name: str = "x", index: int = 0, *, is_closed: bool = False) -> None:
        tool = self._tools[name]
        frame = encode(tool.tool_id, Layout.of(tool.parameters), arguments)
        self.feed(CallReady(index, frame, self.mark(pass_number=7), is_closed))

    def close(self, index: int = 0) -> None:
        self.feed(CallClosed(index, self.mark()))

    def call(self, arguments: str = '{"a": 1}', name: str = "x", index: int = 0) -> None:
        """A whole call."""
        self.route(name, index)
        self.ready(arguments, name, index, is_closed=True)
        self.close(index)

    def mark(self, pass_number: int = 1) -> Mark:
        return Mark(pass_number, 1, self.now_ns - MS)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"midstream:{name}", labels) or 0.0

    def _new_id(self, name: str, number: int) -> str:
        self._num_ids += 1
        return f"call_{self._num_ids}"


def tool(name: str = "x", *, annotations: ToolAnnotations = CAREFUL, **properties: Any) -> ToolSpec:
    properties = properties or {"a": {"type": "integer"}}
    return ToolSpec(name, tool_id(name), "", {"type": "object", "properties": properties}, annotations)


async def settle() -> None:
    """Let every task run until it waits for the test."""
    for _ in range(10):
        await asyncio.sleep(0)


def play(
    scene: Callable[[Stream], Awaitable[None]], *tools: ToolSpec, timeout_s: float = 30.0, budget_s: float = 600.0
) -> Stream:
    """Run a scene on an event loop and return its stream."""

    async def main() -> Stream:
        stream = Stream(*(tools or (tool(),)), timeout_s=timeout_s, budget_s=budget_s)
        await scene(stream)
        await settle()
        return stream

    return asyncio.run(main())
