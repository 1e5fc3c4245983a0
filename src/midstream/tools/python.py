"""Owns the transport to Python tools: a tool host, started on demand and after a death. Runs no tool."""

import asyncio
from collections.abc import Sequence
from typing import Any

from midstream.errors import ToolCancelled, ToolHostDied
from midstream.protocol.envelope import MAX_MESSAGE_BYTES
from midstream.tools.host_client import HostClient, HostRetiring, HostSettings, OpenCall
from midstream.tools.transport import OnProgress, ToolResult

_MAX_HOSTS_PER_CALL = 3
"""Hosts that may refuse a call in turn because they are retiring."""


class PythonTransport:
    """Calls tools in a child process. One event loop owns it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        grace_s: float = 2.0,
        hello_timeout_s: float = 30.0,
        backoff_s: float = 0.1,
        max_backoff_s: float = 5.0,
    ) -> None:
        """`command` starts a tool host; the number of the socket it inherits is appended."""
        self._settings = HostSettings(tuple(command), max_message_bytes, grace_s, hello_timeout_s)
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._num_failures = 0  # in a row, of hosts that never answered a call
        self._starting: asyncio.Task[HostClient] | None = None  # also holds the host once it runs
        self._hosts: set[HostClient] = set()  # the current one and those that end their last calls
        self._is_closed = False

    async def start(self) -> None:
        """Start the host. Raises ToolHostDied where it cannot be started; a later call tries again."""
        await asyncio.shield(self._host())

    def open(self, tool_id: int, deadline_ms: int, on_progress: OnProgress | None = None) -> "PythonCall":
        return PythonCall(self, tool_id, deadline_ms, on_progress)

    async def close(self) -> None:
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await asyncio.gather(*(host.close() for host in self._hosts))

    def ready_host(self) -> HostClient | None:
        """The host that runs; None, after giving orders to start one, where there is none."""
        if self._is_closed:
            return None
        starting = self._host()
        return starting.result() if starting.done() else None

    async def host(self, unless: "asyncio.Future[None]") -> HostClient:
        """Wait for a host that takes calls. Raises ToolCancelled if `unless` comes first, or ToolHostDied."""
        if self._is_closed:
            raise ToolHostDied("the tool host was closed")
        starting = self._host()
        ends: set[asyncio.Future[Any]] = {starting, unless}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if unless.done():
            raise ToolCancelled("cancelled")
        if starting.cancelled():
            raise ToolHostDied("the tool host was closed")
        return starting.result()

    def _host(self) -> asyncio.Task[HostClient]:
        """The task that starts the host, done where it runs; a new one after a death or a failed start."""
        last = self._starting
        if last is None:
            self._starting = self._new_start()
        elif last.done():
            host = None if last.cancelled() or last.exception() else last.result()
            if host is not None and host.is_usable:
                return last
            self._num_failures = 0 if host is not None and host.num_answers else self._num_failures + 1
            self._starting = self._new_start()
        assert self._starting is not None
        return self._starting

    def _new_start(self) -> asyncio.Task[HostClient]:
        task = asyncio.create_task(self._spawn())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _spawn(self) -> HostClient:
        if self._num_failures:
            await asyncio.sleep(min(self._max_backoff_s, self._backoff_s * 2 ** min(self._num_failures - 1, 16)))
        host = await HostClient.spawn(self._settings)
        self._hosts.add(host)
        host.supervision.add_done_callback(lambda _: self._hosts.discard(host))
        return host


class PythonCall:
    """One call, bound to the host that was there when it was opened or, before it ran, to a later one."""

    def __init__(
        self, transport: PythonTransport, tool_id: int, deadline_ms: int, on_progress: OnProgress | None
    ) -> None:
        self._transport = transport
        self._tool_id = tool_id
        self._deadline_ms = deadline_ms
        self._on_progress = on_progress
        self._cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frame: bytes | None = None
        self._bound: tuple[HostClient, OpenCall] | None = None
        if (host := transport.ready_host()) is not None:
            self._bind(host)

    def partial(self, field_index: int, text: str) -> None:
        if self._bound is not None:
            host, call = self._bound
            host.partial(call, field_index, text)

    def start(self, frame: bytes) -> None:
        assert self._frame is None, "a call runs once"
        self._frame = frame
        if self._bound is not None and not self._cancelled.done():
            host, call = self._bound
            host.send_frame(call, frame)

    async def result(self) -> ToolResult:
        assert self._frame is not None, "a call ends after its start"
        for _ in range(_MAX_HOSTS_PER_CALL):
            host, call = await self._bound_call()
            try:
                return await host.result(call, self._frame)
            except HostRetiring:
                self._bound = None
        raise ToolHostDied("every tool host is shutting down; try again")

    def cancel(self) -> None:
        if self._cancelled.done():
            return
        self._cancelled.set_result(None)
        if self._bound is not None:
            host, call = self._bound
            host.cancel(call)

    async def _bound_call(self) -> tuple[HostClient, OpenCall]:
        if self._cancelled.done():
            raise ToolCancelled("cancelled")
        if self._bound is None or self._bound[1].was_lost:
            return self._bind(await self._transport.host(unless=self._cancelled))
        return self._bound

    def _bind(self, host: HostClient) -> tuple[HostClient, OpenCall]:
        self._bound = host, host.open(self._tool_id, self._deadline_ms, self._on_progress)
        return self._bound
