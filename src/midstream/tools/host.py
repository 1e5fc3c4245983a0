"""Owns the tool-host process: calls come in, each ends with one result or error. Starts no process.

Untrusted and CPU-bound tools run here: they share no GIL with the gateway and may take this process down.
"""

import asyncio
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from midstream.errors import BtifError, EnvelopeError, ToolArgumentsInvalid
from midstream.protocol import btif
from midstream.protocol.envelope import Kind, Message
from midstream.protocol.payloads import Error, ErrorCode, Hello, Open, Partial, Progress
from midstream.tools.argument_stream import ArgumentStream
from midstream.tools.channel import Channel
from midstream.tools.context import reporter
from midstream.tools.limits import HostLimits
from midstream.tools.outcome import Outcome, outcome_of_exception
from midstream.tools.registry import Tool
from midstream.tools.running import Run, Runner

_SHUTTING_DOWN = Error(ErrorCode.SHUTTING_DOWN, "this tool host is shutting down")

_HANG_UP_S = 5.0
"""For the client to hang up on a host that shuts down, and to read what was sent last."""

_SWITCH_INTERVAL_S = 0.0005
"""How long a computing tool may keep the interpreter from a call that has just come; Python's own is 5 ms."""


def run_host(fd: int, tools: Mapping[int, Tool], limits: HostLimits | None = None) -> None:
    """Serve on the inherited socket `fd` until the client hangs up, then end the process whatever still runs.

    What tools print goes to stderr.
    """
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sys.stdout = sys.stderr
    sys.setswitchinterval(_SWITCH_INTERVAL_S)

    async def main() -> None:
        try:
            await serve(sock, tools, limits or HostLimits())
        except Exception:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)  # neither threads nor tasks that refuse to end may keep us

    asyncio.run(main())


async def serve(sock: socket.socket, tools: Mapping[int, Tool], limits: HostLimits) -> None:
    """Answer calls until the peer hangs up or too many runs have been abandoned. Takes `sock` over."""
    channel = await Channel.over(sock, limits.max_message_bytes)
    try:
        await _Host(channel, tools, limits).serve()
    finally:
        with suppress(TimeoutError):
            await asyncio.wait_for(channel.close(), _HANG_UP_S)


@dataclass(eq=False)
class _Call:
    number: int
    tool: Tool
    deadline_s: float
    stream: ArgumentStream | None = None
    """What its function reads, once it has begun on a part of its argument."""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    """Its whole arguments are here: its time runs."""
    stop: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_running: bool = False
    refusal: Error | None = None
    progress: Progress | None = None
    """The latest report, not yet sent."""


class _Host:
    def __init__(self, channel: Channel, tools: Mapping[int, Tool], limits: HostLimits) -> None:
        self._channel = channel
        self._tools = tools
        self._layouts = {tool_id: btif.Layout.of(tool.spec.parameters) for tool_id, tool in tools.items()}
        self._limits = limits
        self._runner = Runner(limits, on_worn_out=self._retire)
        self._calls: dict[int, _Call] = {}
        self._last_number = 0  # numbers only rise, so lower ones have ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_retiring = False
        self._retired = asyncio.Event()

    async def serve(self) -> None:
        self._channel.send(Kind.HELLO, 0, self._hello().pack())
        receiving = asyncio.create_task(self._receive())
        retiring = asyncio.create_task(self._retired.wait())
        await asyncio.wait({receiving, retiring}, return_when=asyncio.FIRST_COMPLETED)
        # The client hangs up when it has read everything; until then what it sends is refused.
        await asyncio.wait({receiving}, timeout=_HANG_UP_S)
        for task in (receiving, retiring, *self._tasks):
            task.cancel()
        await asyncio.gather(receiving, retiring, *self._tasks, return_exceptions=True)
        if not receiving.cancelled() and (fault := receiving.exception()):
            raise fault

    def _hello(self) -> Hello:
        specs = [msgspec.to_builtins(tool.spec) for tool in self._tools.values()]
        return Hello({"name": "midstream", "tools": specs})

    async def _receive(self) -> None:
        is_greeted = False
        try:
            async for message in self._channel.messages():
                if is_greeted:
                    self._on_message(message)
                elif message.kind is Kind.HELLO:
                    Hello.unpack(message.payload)
                    is_greeted = True
                else:
                    raise EnvelopeError(f"{message.kind.name.lower()} before hello", offset=4)
        except EnvelopeError as fault:
            # Number 0 is no call's: the connection itself is at fault.
            self._channel.send(Kind.ERROR, 0, Error(ErrorCode.BAD_FRAME, fault.message).pack())

    def _on_message(self, message: Message) -> None:
        match message.kind:
            case Kind.OPEN:
                self._open(message.call, Open.unpack(message.payload))
            case Kind.CALL:
                self._start(message.call, message.payload)
            case Kind.CANCEL:
                self._cancel(message.call)
            case Kind.PING:
                self._channel.send(Kind.PONG, message.call, message.payload)
            case Kind.PARTIAL:
                self._on_partial(message.call, Partial.unpack(message.payload))
            case Kind.PONG:
                pass
            case _:
                raise EnvelopeError(f"{message.kind.name.lower()} is not for a tool host", offset=4)

    def _open(self, number: int, opened: Open) -> None:
        if number <= self._last_number:
            raise EnvelopeError(f"call {number} after call {self._last_number}", offset=5)
        self._last_number = number
        tool = self._tools.get(opened.tool_id)
        if self._is_retiring:
            self._send(number, _SHUTTING_DOWN)
        elif tool is None:
            self._send(number, Error(ErrorCode.UNKNOWN_TOOL, f"no tool has id 0x{opened.tool_id:08x}"))
        elif len(self._calls) >= self._limits.max_open_calls:
            self._send(number, Error(ErrorCode.OVER_LIMIT, f"{len(self._calls)} calls are open already"))
        else:
            self._calls[number] = _Call(number, tool, opened.deadline_ms / 1000)

    def _start(self, number: int, frame: bytes) -> None:
        call = self._calls.get(number)
        if call is None and number <= self._last_number:
            return  # it ended while its frame was on the way
        if call is None or call.is_running:
            raise EnvelopeError(f"call {number} is not open", offset=5)
        call.is_running = True
        call.called.set()
        arguments = self._arguments(call.tool, frame)
        if isinstance(arguments, Error):
            if call.stream is None:
                self._finish(call, arguments)
            else:
                self._refuse(call, arguments)
        elif call.tool.streamed is None:
            self._run(call, arguments)
        else:
            self._stream(call).finish(arguments[call.tool.streamed])

    def _on_partial(self, number: int, part: Partial) -> None:
        call = self._calls.get(number)
        if call is not None and call.tool.streamed is not None and not call.is_running:
            self._stream(call).feed(part.text)

    def _stream(self, call: _Call) -> ArgumentStream:
        """What the call's function reads; it is started with the first piece."""
        if call.stream is None:
            assert call.tool.streamed is not None
            call.stream = ArgumentStream()
            self._run(call, {call.tool.streamed: call.stream})
        return call.stream

    def _refuse(self, call: _Call, error: Error) -> None:
        """A run that began on a part of arguments that turned out to be wrong ends with what is wrong."""
        call.refusal = error
        if not call.stop.done():
            call.stop.set_result(None)

    def _run(self, call: _Call, arguments: dict[str, Any]) -> None:
        context = copy_context()
        context.run(reporter.set, partial(self._report, asyncio.get_running_loop(), call))
        run = self._runner.start(call.tool, arguments, context)
        task = asyncio.create_task(self._see_out(call, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, number: int) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        if not call.stop.done():
            call.stop.set_result(None)
        if not call.is_running and call.stream is None:
            self._finish(call, Error(ErrorCode.CANCELLED, "cancelled"))

    async def _see_out(self, call: _Call, run: Run) -> None:
        """Wait for the end of a run, or end it: told to, or at its deadline."""
        outcome = run.outcome
        ends: set[asyncio.Future[Any]] = {outcome, call.stop}
        try:
            if not call.called.is_set():
                called = asyncio.create_task(call.called.wait())
                await asyncio.wait({*ends, called}, return_when=asyncio.FIRST_COMPLETED)
                called.cancel()
            await asyncio.wait(ends, timeout=call.deadline_s, return_when=asyncio.FIRST_COMPLETED)
            self._finish(call, outcome.result() if outcome.done() else self._reason_to_stop(call))
        finally:
            if not outcome.done():
                self._runner.stop(run)
        await self._channel.drain()

    def _arguments(self, tool: Tool, frame: bytes) -> dict[str, Any] | Error:
        try:
            decoded = btif.decode_arguments(frame, self._layouts[tool.spec.tool_id])
        except BtifError as fault:
            return Error(ErrorCode.BAD_FRAME, fault.message)
        if int.from_bytes(frame[:4], "big") != tool.spec.tool_id:
            return Error(ErrorCode.BAD_FRAME, "the frame is another tool's than the one opened")
        try:
            return tool.call_arguments(decoded)
        except ToolArgumentsInvalid as fault:
            return Error(ErrorCode.INVALID_ARGUMENTS, fault.message)
        except Exception as fault:  # a validator that a tool brought along
            return Error(ErrorCode.INVALID_ARGUMENTS, outcome_of_exception(fault, self._limits).text)

    def _reason_to_stop(self, call: _Call) -> Error:
        if call.refusal is not None:
            return call.refusal
        if call.stop.done():
            return Error(ErrorCode.CANCELLED, "cancelled")
        return Error(ErrorCode.TIMED_OUT, f"timed out after {call.deadline_s:g} s")

    def _finish(self, call: _Call, outcome: Outcome) -> None:
        if call.progress is not None:
            self._send_progress(call)
        del self._calls[call.number]
        self._send(call.number, outcome)
        if self._is_retiring and not self._calls:
            self._retired.set()

    def _send(self, number: int, outcome: Outcome) -> None:
        kind = Kind.ERROR if isinstance(outcome, Error) else Kind.RESULT
        try:
            self._channel.send(kind, number, outcome.pack())
        except EnvelopeError as fault:
            self._channel.send(Kind.ERROR, number, Error(ErrorCode.OVER_LIMIT, fault.message).pack())

    def _report(self, loop: asyncio.AbstractEventLoop, call: _Call, percent: int | None, text: str) -> None:
        """May be called on any thread. A report that waits to be sent is replaced by a later one."""
        is_scheduled = call.progress is not None
        whole = None if percent is None else int(percent)
        call.progress = Progress(whole, str(text)[: self._limits.max_progress_chars])
        if not is_scheduled:
            loop.call_soon_threadsafe(self._send_progress, call)

    def _send_progress(self, call: _Call) -> None:
        progress, call.progress = call.progress, None
        if progress is not None and call.number in self._calls and not self._channel.is_congested:
            self._channel.send(Kind.PROGRESS, call.number, progress.pack())

    def _retire(self) -> None:
        """Take no more calls: the client starts a fresh host, and hangs up when the last call has ended."""
        if self._is_retiring:
            return
        self._is_retiring = True
        self._channel.send(Kind.ERROR, 0, _SHUTTING_DOWN.pack())
        for call in [call for call in self._calls.values() if not call.is_running and call.stream is None]:
            self._finish(call, _SHUTTING_DOWN)
        if not self._calls:
            self._retired.set()
