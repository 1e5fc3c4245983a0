"""Owns what every way of reaching a tool has in common. Implements none of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

OnProgress = Callable[[int | None, str], None]
"""Percent (None where unknown) and a text. Called on the event loop; must not block."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    media_type: str
    content: bytes


class CallHandle(Protocol):
    """One call, from the moment it is routed. Whoever opened it either starts it once or cancels it."""

    def partial(self, field_index: int, text: str) -> None:
        """Pass on the text of an argument decoded since the last time."""

    def start(self, frame: bytes) -> None:
        """Run the tool with the arguments in a BTIF frame. Never blocks or raises: `result` says what went wrong."""

    async def result(self) -> ToolResult:
        """Wait for the end of a run that was started. Raises one of the ToolError tree."""

    def cancel(self) -> None:
        """Stop the call, before or during its run; `result` then raises ToolCancelled. May be called again."""


class Transport(Protocol):
    async def start(self) -> None: ...

    def open(self, tool_id: int, deadline_ms: int, on_progress: OnProgress | None = None) -> CallHandle:
        """Get ready for a call that has been routed. Never blocks or raises: `result` says what went wrong.

        `deadline_ms` is for the run alone: decoding the arguments does not count.
        """

    async def close(self) -> None:
        """Fail what is open and leave no process, task or descriptor behind."""
