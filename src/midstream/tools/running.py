"""Owns how a tool's function is run: on the loop or on a thread, and told to stop. Knows no connection."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from midstream.protocol.payloads import Error, ErrorCode
from midstream.tools.limits import HostLimits
from midstream.tools.outcome import Outcome, outcome_of_exception, outcome_of_value
from midstream.tools.registry import Tool


class Runner:
    """Runs functions within the limits and counts the runs that nothing could stop."""

    def __init__(self, limits: HostLimits, on_worn_out: Callable[[], None]) -> None:
        self._limits = limits
        self._on_worn_out = on_worn_out
        self._threads = asyncio.Semaphore(limits.max_threads)
        self._abandoned: set[asyncio.Future[Outcome]] = set()

    def start(self, tool: Tool, arguments: dict[str, Any]) -> asyncio.Task[Outcome]:
        """Begin a run in the current context. The task never raises; whoever holds it may `stop` it."""
        if inspect.iscoroutinefunction(tool.function):
            return asyncio.create_task(self._on_loop(tool, arguments))
        return asyncio.create_task(self._on_thread(tool, arguments))

    def stop(self, run: asyncio.Task[Outcome]) -> None:
        run.cancel()
        self._watch(run)

    async def _on_loop(self, tool: Tool, arguments: dict[str, Any]) -> Outcome:
        try:
            return outcome_of_value(await tool.function(**arguments), self._limits)
        except asyncio.CancelledError:
            # Its own, of something it awaited, unless we were told to stop; then nobody reads this.
            return Error(ErrorCode.TOOL_FAILED, "CancelledError")
        except BaseException as fault:  # SystemExit too: a tool must not end the host
            return outcome_of_exception(fault, self._limits)

    async def _on_thread(self, tool: Tool, arguments: dict[str, Any]) -> Outcome:
        async with self._threads:
            try:
                outcome = self._start_thread(tool, arguments)
            except RuntimeError as fault:  # no thread to be had
                return outcome_of_exception(fault, self._limits)
            try:
                return await asyncio.shield(outcome)
            except asyncio.CancelledError:
                self._watch(outcome)
                raise

    def _start_thread(self, tool: Tool, arguments: dict[str, Any]) -> asyncio.Future[Outcome]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()

        def work() -> None:
            try:
                outcome = outcome_of_value(tool.function(**arguments), self._limits)
            except BaseException as fault:
                outcome = outcome_of_exception(fault, self._limits)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(future.set_result, outcome)

        # A daemon: the host must be able to end while a tool does not.
        context = copy_context()
        threading.Thread(target=context.run, args=(work,), name=tool.spec.name, daemon=True).start()
        return future

    def _watch(self, run: asyncio.Future[Outcome]) -> None:
        """Count `run` as abandoned if it goes on for longer than the grace."""
        asyncio.get_running_loop().call_later(self._limits.stop_grace_s, self._abandon, run)

    def _abandon(self, run: asyncio.Future[Outcome]) -> None:
        if run.done():
            return
        self._abandoned.add(run)
        run.add_done_callback(self._abandoned.discard)
        if len(self._abandoned) >= self._limits.max_abandoned:
            self._on_worn_out()
