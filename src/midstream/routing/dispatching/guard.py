"""Owns what the calls of one tool share: how many run at once, whether a run is tried again, and when nobody asks.

A tool that answers with an error works; one that does not answer in time, or takes its host with it, does not: after
`MAX_FAILURES` of those in a row nothing is sent to it for `PAUSE_S`, then one call finds out.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable

from midstream.errors import (
    ToolCancelled,
    ToolError,
    ToolFailed,
    ToolHostDied,
    ToolTimedOut,
    ToolUnavailable,
)
from midstream.messages import ToolSpec
from midstream.tools.transport import CallHandle, OnProgress, ToolResult, Transport

MAX_ATTEMPTS = 3
BACKOFF_S = 0.1
"""Longest wait before the second attempt; it doubles. The wait is drawn at random below it (full jitter)."""
MAX_FAILURES = 5
PAUSE_S = 10.0
TOGETHER_S = 0.05

_RETRIED = (ToolFailed, ToolHostDied)
_UNANSWERED = (ToolTimedOut, ToolHostDied)


class Slots:
    """Places for the runs of one tool, given out in the order in which they were asked for."""

    def __init__(self, limit: int | None) -> None:
        """None: no limit."""
        self._num_free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        if self._num_free is None:
            return True
        if self._num_free == 0 or self._waiting:
            return False
        self._num_free -= 1
        return True

    async def wait(self) -> None:
        """Wait for a place and take it. Whoever is cancelled takes none."""
        if self.take():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        if self._num_free is None:
            return
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._num_free += 1


class Guard:
    """One tool, as the dispatcher calls it: a transport with manners. One event loop owns it."""

    def __init__(
        self,
        spec: ToolSpec,
        transport: Transport,
        *,
        timeout_s: float,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[float], float] = lambda longest_s: random.uniform(0, longest_s),  # noqa: S311 - no secret
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        """`timeout_s`: the longest run of the tool."""
        self.spec = spec
        self.transport = transport
        self.timeout_s = timeout_s
        self.slots = Slots(spec.annotations.max_concurrency)
        self.sleep = sleep
        self.jitter = jitter
        self.on_retry = on_retry
        self.max_attempts = MAX_ATTEMPTS if spec.annotations.idempotent else 1
        self.now_s = now_s
        self._num_failures = 0
        self._paused_until_s = 0.0
        self._last_death_s = float("-inf")

    def open(self, deadline_ms: int, on_progress: OnProgress | None = None) -> "GuardedCall":
        return GuardedCall(self, deadline_ms, on_progress)

    def refusal(self) -> ToolUnavailable | None:
        """Why the tool is not to be called now."""
        left_s = self._paused_until_s - self.now_s()
        if self.is_well or left_s <= 0:
            return None
        times = f"{self._num_failures} times in a row"
        return ToolUnavailable(f"{self.spec.name} did not answer {times}; it is called again in {left_s:.0f} s")

    def let_through(self) -> None:
        """A call starts: after a pause it is the one that finds out, and the pause begins anew."""
        if not self.is_well:
            self._paused_until_s = self.now_s() + PAUSE_S

    @property
    def is_well(self) -> bool:
        return self._num_failures < MAX_FAILURES

    def note(self, error: Exception | None) -> None:
        """How a call ended. Those that a host takes down with it together count once."""
        now_s = self.now_s()
        if not isinstance(error, _UNANSWERED):
            self._num_failures = 0
            return
        if not isinstance(error, ToolHostDied) or now_s - self._last_death_s > TOGETHER_S:
            self._num_failures += 1
        if isinstance(error, ToolHostDied):
            self._last_death_s = now_s
        self._paused_until_s = now_s + PAUSE_S


class GuardedCall:
    """One call of a guarded tool. It starts at once where it may."""

    def __init__(self, guard: Guard, deadline_ms: int, on_progress: OnProgress | None) -> None:
        self._guard = guard
        self._deadline_ms = deadline_ms
        self._on_progress = on_progress
        self._handle = self._open()
        self._frame = b""
        self._refusal: ToolUnavailable | None = None
        self._has_place = False
        self._is_awaited = False
        self._is_cancelled = False
        self._ends_s = 0.0
        # A part may begin the run: not past the tool's limits. Whether they are passed on is settled once for all.
        self._takes_parts = guard.spec.annotations.max_concurrency is None and guard.is_well

    def partial(self, field_index: int, text: str) -> None:
        if self._takes_parts:
            self._handle.partial(field_index, text)

    def start(self, frame: bytes) -> None:
        self._frame = frame
        self._ends_s = self._guard.now_s() + self._deadline_ms / 1000
        self._refusal = self._guard.refusal()
        if self._refusal is None and self._guard.slots.take():
            self._has_place = True
            self._begin()

    async def result(self) -> ToolResult:
        self._is_awaited = True
        try:
            if self._refusal is None and not self._has_place:
                await self._wait_for_place()
            if self._refusal is not None:
                self._handle.cancel()
                raise self._refusal
            return await self._noted()
        finally:
            self._give_place_back()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._handle.cancel()
        if not self._is_awaited:
            self._give_place_back()

    async def _wait_for_place(self) -> None:
        """The wait counts as the run's own time, and the tool may have failed the others meanwhile."""
        try:
            async with asyncio.timeout(self._left_s()):
                await self._guard.slots.wait()
        except TimeoutError:
            raise ToolTimedOut("no place was free in time") from None
        self._has_place = True
        self._refusal = self._guard.refusal()
        if self._refusal is None:
            self._handle.cancel()
            self._open_again()
            self._begin()

    def _begin(self) -> None:
        self._guard.let_through()
        self._handle.start(self._frame)

    def _left_s(self) -> float:
        return self._ends_s - self._guard.now_s()

    async def _noted(self) -> ToolResult:
        """The guard hears of a call once, by its last attempt."""
        try:
            result = await self._tries()
        except ToolCancelled:
            raise
        except ToolTimedOut as error:
            # A run that had less than the tool's own time says nothing of the tool.
            if self._deadline_ms >= int(self._guard.timeout_s * 1000):
                self._guard.note(error)
            raise
        except ToolError as error:
            self._guard.note(error)
            raise
        self._guard.note(None)
        return result

    async def _tries(self) -> ToolResult:
        for attempt in range(1, self._guard.max_attempts + 1):
            try:
                return await self._handle.result()
            except _RETRIED:
                if attempt == self._guard.max_attempts or self._is_cancelled or self._left_s() <= 0:
                    raise
            await self._try_again(attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _try_again(self, attempt: int) -> None:
        self._guard.on_retry()
        await self._guard.sleep(self._guard.jitter(BACKOFF_S * 2 ** (attempt - 1)))
        if self._is_cancelled:
            raise ToolCancelled("cancelled")
        self._open_again()
        self._handle.start(self._frame)

    def _open(self) -> CallHandle:
        return self._guard.transport.open(self._guard.spec.tool_id, self._deadline_ms, self._on_progress)

    def _open_again(self) -> None:
        """A new run, for what is left of the time."""
        self._deadline_ms = max(1, int(self._left_s() * 1000))
        self._handle = self._open()

    def _give_place_back(self) -> None:
        if self._has_place:
            self._has_place = False
            self._guard.slots.give_back()


class RefusedCall:
    """A call that never starts."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def partial(self, field_index: int, text: str) -> None:
        pass

    def start(self, frame: bytes) -> None:
        pass

    async def result(self) -> ToolResult:
        raise ToolUnavailable(self._reason)

    def cancel(self) -> None:
        pass
