"""Owns one run of a tool that several calls may wait for. Decides nothing about when it may start."""

import asyncio

from midstream.tools.transport import CallHandle, ToolResult


class SharedRun:
    """A started call and those who wait for its result; it is cancelled when the last of them leaves."""

    def __init__(self, handle: CallHandle, name: str) -> None:
        self._handle = handle
        self._num_waiting = 0
        self._task = asyncio.create_task(handle.result(), name=name)
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def is_open(self) -> bool:
        """Another call may join it."""
        has_failed = self._task.done() and (self._task.cancelled() or self._task.exception() is not None)
        return self._num_waiting > 0 and not has_failed

    def join(self) -> None:
        self._num_waiting += 1

    def leave(self) -> None:
        """Give the result up. Once for each `join`, at most."""
        self._num_waiting -= 1
        if self._num_waiting == 0:
            self._handle.cancel()
            self._task.cancel()

    async def result(self) -> ToolResult:
        """Raises one of the ToolError tree."""
        return await asyncio.shield(self._task)
