"""Owns how a tool's function is run: on the loop or on a thread, and told to stop. Knows no connection."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from midstream.protocol.payloads import Error, ErrorCode
from midstream.tools.limits import HostLimits
from midstream.tools.outcome import Outcome, outcome_of_exception, outcome_of_value
from midstream.tools.registry import Tool


@dataclass(frozen=True, eq=False)
class Run:
    outcome: "asyncio.Future[Outcome]"
    """Never raises. Cancelled where the run was stopped before it began, or where the tool let itself be stopped."""
    cancel: Callable[[], object]


class Runner:
    """Runs functions within the limits and counts the runs that nothing could stop."""

    def __init__(self, limits: HostLimits, on_worn_out: Callable[[], None]) -> None:
        self._limits = limits
        self._on_worn_out = on_worn_out
        # Threads are kept: to start one takes longer than all that lies between a call and its function.
        self._threads = ThreadPoolExecutor(limits.max_threads, thread_name_prefix="tool")
        self._abandoned: set[asyncio.Future[Outcome]] = set()

    def start(self, tool: Tool, arguments: dict[str, Any], context: Context) -> Run:
        """Begin a run in `context`; whoever holds it may `stop` it."""
        if inspect.iscoroutinefunction(tool.function):
            task = asyncio.get_running_loop().create_task(self._on_loop(tool, arguments), context=context)
            return Run(task, task.cancel)
        return self._on_thread(tool, arguments, context)

    def stop(self, run: Run) -> None:
        """Ask it to end, and count it as abandoned if it goes on for longer than the grace."""
        run.cancel()
        asyncio.get_running_loop().call_later(self._limits.stop_grace_s, self._abandon, run.outcome)

    async def _on_loop(self, tool: Tool, arguments: dict[str, Any]) -> Outcome:
        try:
            return outcome_of_value(await tool.function(**arguments), self._limits)
        except asyncio.CancelledError:
            # Its own, of something it awaited, unless we were told to stop; then nobody reads this.
            return Error(ErrorCode.TOOL_FAILED, "CancelledError")
        except BaseException as fault:  # SystemExit too: a tool must not end the host
            return outcome_of_exception(fault, self._limits)

    def _on_thread(self, tool: Tool, arguments: dict[str, Any], context: Context) -> Run:
        is_refused = False

        def work() -> Outcome:
            if is_refused:
                return Error(ErrorCode.TOOL_FAILED, "refused")
            try:
                return outcome_of_value(tool.function(**arguments), self._limits)
            except BaseException as fault:
                return outcome_of_exception(fault, self._limits)

        try:
            job = self._threads.submit(context.run, work)
        except RuntimeError as fault:  # no thread to be had, yet `work` is queued for those that there are
            is_refused = True
            refused: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            refused.set_result(outcome_of_exception(fault, self._limits))
            return Run(refused, refused.cancel)
        return Run(asyncio.wrap_future(job), job.cancel)

    def _abandon(self, run: "asyncio.Future[Outcome]") -> None:
        if run.done():
            return
        self._abandoned.add(run)
        run.add_done_callback(self._abandoned.discard)
        if len(self._abandoned) >= self._limits.max_abandoned:
            self._on_worn_out()
