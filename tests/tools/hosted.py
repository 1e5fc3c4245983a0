"""Owns the tools under test and the process that hosts them: `-m tests.tools.hosted FD`. Holds no test."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any

from midstream.tools.context import report_progress
from midstream.tools.host import run_host
from midstream.tools.limits import HostLimits
from midstream.tools.registry import Registry, tool

LIMITS = HostLimits(max_threads=4, max_abandoned=2, stop_grace_s=0.05, max_message_bytes=4 * 1024 * 1024)

_meeting_async: list[asyncio.Event] = []
_meeting_sync = threading.Barrier(2)


@tool
async def greet(name: str) -> str:
    return f"hello {name}"


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


@tool
def describe(day: date) -> dict[str, Any]:
    return {"day": day, "price": Decimal("12.50"), "big": 10**30}


@tool
async def meet() -> str:
    """Returns only when two calls are running at once."""
    _meeting_async.append(asyncio.Event())
    if len(_meeting_async) == 2:
        for event in _meeting_async:
            event.set()
    await _meeting_async[-1].wait()
    return "met"


@tool
def meet_on_threads() -> str:
    _meeting_sync.wait(timeout=20)
    return "met"


@tool
def fail(message: str) -> None:
    raise LookupError(message)


@tool
async def leave() -> None:
    sys.exit(3)


@tool
def leave_from_a_thread() -> None:
    raise KeyboardInterrupt


@tool
def flood(num_bytes: int) -> str:
    return "x" * num_bytes


@tool
def not_a_number() -> list[float]:
    return [float("nan")]


@tool
def not_json() -> object:
    return object()


@tool
async def hang() -> None:
    await asyncio.Event().wait()


@tool
async def hang_stubbornly() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@tool
def hang_on_a_thread() -> None:
    threading.Event().wait()


@tool
async def freeze() -> None:
    """Blocks the host's loop, which no deadline of its own can end."""
    time.sleep(3600)  # noqa: ASYNC251


@tool
async def say() -> str:
    print("a line for a person")
    os.write(1, b"\x00\xff bytes that are no message")
    return "said"


@tool
def work() -> str:
    report_progress(50, "half")
    for _ in range(10_000):
        report_progress(None, "on")
    report_progress(100, "all")
    return "worked"


@tool
async def pid() -> int:
    return os.getpid()


@tool(read_only=True)
async def spell(text: AsyncIterator[str]) -> str:
    """Tell each piece as it comes, and all of them at the end."""
    pieces = []
    async for piece in text:
        pieces.append(piece)
        report_progress(None, piece)
    return "|".join(pieces)


@tool(read_only=True)
async def first_piece(text: AsyncIterator[str]) -> str:
    return await anext(text)


REGISTRY = Registry(
    [
        greet, add, describe, meet, meet_on_threads, fail, leave, leave_from_a_thread, flood, not_a_number,
        not_json, hang, hang_stubbornly, hang_on_a_thread, freeze, say, work, pid, spell, first_piece,
    ]
)  # fmt: skip

if __name__ == "__main__":
    run_host(int(sys.argv[1]), REGISTRY.tools, LIMITS)
