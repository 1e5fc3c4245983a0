"""Owns one tool-host process and the connection to it. Never starts a second one: that is the transport's."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import structlog

from midstream.errors import (
    EnvelopeError,
    ToolArgumentsInvalid,
    ToolCancelled,
    ToolError,
    ToolFailed,
    ToolHostDied,
    ToolOverLimit,
    ToolTimedOut,
)
from midstream.protocol.envelope import Kind, Message
from midstream.protocol.payloads import Error, ErrorCode, Hello, Open, Partial, Progress, Result
from midstream.tools.channel import Channel
from midstream.tools.transport import OnProgress, ToolResult

log = structlog.get_logger(__name__)

_CLOSE_GRACE_S = 2.0
_LAST_WORDS_S = 0.25
"""For what an ended process has sent to be read: something that it started may hold the socket open."""


class HostRetiring(ToolHostDied):
    """The host refused the call before it ran: another host may run it."""


_ERRORS: dict[ErrorCode, type[ToolError]] = {
    ErrorCode.BAD_FRAME: ToolArgumentsInvalid,
    ErrorCode.UNKNOWN_TOOL: ToolFailed,
    ErrorCode.INVALID_ARGUMENTS: ToolArgumentsInvalid,
    ErrorCode.TOOL_FAILED: ToolFailed,
    ErrorCode.TIMED_OUT: ToolTimedOut,
    ErrorCode.OVER_LIMIT: ToolOverLimit,
    ErrorCode.CANCELLED: ToolCancelled,
    ErrorCode.SHUTTING_DOWN: HostRetiring,
}


@dataclass(frozen=True)
class HostSettings:
    command: Sequence[str]
    """Starts a host; the number of the inherited socket is appended."""
    max_message_bytes: int
    grace_s: float
    """What a healthy host may be late with an answer; one that is later is killed."""
    hello_timeout_s: float


@dataclass(eq=False)
class OpenCall:
    number: int
    ended: "asyncio.Future[ToolResult]"
    deadline_s: float
    on_progress: OnProgress | None
    lacks_a_part: bool = False
    """A piece was left out, so that no later one can follow."""
    is_sent: bool = False
    """Its frame is on the way."""

    @property
    def was_lost(self) -> bool:
        """It ended with its host before its frame was sent: another host may run it."""
        return not self.is_sent and self.ended.done() and isinstance(self.ended.exception(), ToolHostDied)


class HostClient:
    """The client's end of one host. Calls pipeline over it; its death fails them all at once."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel, settings: HostSettings) -> None:
        self._process = process
        self._channel = channel
        self._settings = settings
        self._calls: dict[int, OpenCall] = {}
        self._last_number = 0
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_retiring = False
        self._fault = "the tool host died"
        self.num_answers = 0
        self.supervision = asyncio.create_task(self._supervise())

    @classmethod
    async def spawn(cls, settings: HostSettings) -> Self:
        """Start a host and exchange hellos. Raises ToolHostDied, leaving no process behind."""
        try:
            process, channel = await _start_process(settings)
        except OSError as fault:
            raise ToolHostDied(f"the tool host cannot be started: {fault}") from None
        client = cls(process, channel, settings)
        try:
            await client._greet()
        except BaseException:
            await client.kill("the tool host did not start")
            raise
        log.info("tool_host_started", pid=process.pid)
        return client

    @property
    def is_usable(self) -> bool:
        return not self._is_retiring and not self.supervision.done()

    def open(self, tool_id: int, deadline_ms: int, on_progress: OnProgress | None) -> OpenCall:
        self._last_number += 1
        ended: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(_mark_retrieved)
        call = OpenCall(self._last_number, ended, deadline_ms / 1000, on_progress)
        if not self.is_usable:
            ended.set_exception(HostRetiring(self._fault))
            return call
        self._calls[call.number] = call
        self._channel.send(Kind.OPEN, call.number, Open(tool_id, deadline_ms).pack())
        return call

    def partial(self, call: OpenCall, field_index: int, text: str) -> None:
        # A host that does not keep up gets the rest of the arguments whole, in the frame.
        call.lacks_a_part = call.lacks_a_part or self._channel.is_congested
        if call.number in self._calls and not call.lacks_a_part:
            self._channel.send(Kind.PARTIAL, call.number, Partial(field_index, text).pack())

    def send_frame(self, call: OpenCall, frame: bytes) -> None:
        """Send the frame now; to a host that does not keep up, or one over the limit, `result` does."""
        if call.number in self._calls and not self._channel.is_congested:
            with suppress(EnvelopeError):
                self._channel.send(Kind.CALL, call.number, frame)
                call.is_sent = True

    async def result(self, call: OpenCall, frame: bytes) -> ToolResult:
        """Wait for the end of the call, at most for its deadline and the grace. Sends the frame if it is still here."""
        try:
            async with asyncio.timeout(call.deadline_s + self._settings.grace_s):
                await self._channel.drain()
                if not call.ended.done() and not call.is_sent:
                    self._channel.send(Kind.CALL, call.number, frame)
                    call.is_sent = True
                return await asyncio.shield(call.ended)
        except EnvelopeError as fault:
            self.forget(call)
            raise ToolOverLimit(fault.message) from None
        except TimeoutError:
            # A healthy host would have said so itself.
            self._calls.pop(call.number, None)
            self._kill("the tool host was frozen")
            raise ToolTimedOut(f"timed out after {call.deadline_s:g} s") from None
        except asyncio.CancelledError:
            self.forget(call)
            raise

    def cancel(self, call: OpenCall) -> None:
        """Ask the host to stop; its answer ends the call, or ours after the grace."""
        if call.number not in self._calls:
            return
        self._channel.send(Kind.CANCEL, call.number)
        loop = asyncio.get_running_loop()
        late = loop.call_later(self._settings.grace_s, self._end, call.number, ToolCancelled("cancelled"))
        call.ended.add_done_callback(lambda _: late.cancel())

    def forget(self, call: OpenCall) -> None:
        """Cancel without waiting for the answer."""
        if call.number in self._calls:
            self._channel.send(Kind.CANCEL, call.number)
            self._end(call.number, ToolCancelled("cancelled"))

    async def kill(self, why: str) -> None:
        self._kill(why)
        await asyncio.wait({self.supervision})

    async def close(self) -> None:
        """Hang up, which ends the host; kill it where it does not end soon."""
        self._retire("the tool host was closed")
        self._channel.hang_up()
        await asyncio.wait({self.supervision}, timeout=_CLOSE_GRACE_S)
        await self.kill(self._fault)

    def _kill(self, why: str) -> None:
        self._retire(why)
        with suppress(ProcessLookupError):
            self._process.kill()

    def _retire(self, why: str) -> None:
        """Take no more calls and fail the open ones."""
        self._is_retiring = True
        self._fault = why
        if not self._hello.done():
            self._hello.set_exception(ToolHostDied(why))
            _mark_retrieved(self._hello)
        for call in self._calls.values():
            call.ended.set_exception(ToolHostDied(why))
        self._calls.clear()

    async def _greet(self) -> None:
        hello = Hello({"name": "midstream", "max_message_bytes": self._settings.max_message_bytes})
        self._channel.send(Kind.HELLO, 0, hello.pack())
        try:
            async with asyncio.timeout(self._settings.hello_timeout_s):
                await self._hello
        except TimeoutError:
            raise ToolHostDied(f"the tool host did not answer in {self._settings.hello_timeout_s:g} s") from None

    async def _supervise(self) -> None:
        """Ends when the process has, by itself or killed because it hung up or broke the protocol."""
        receiving = asyncio.create_task(self._receive())
        exiting = asyncio.create_task(self._process.wait())
        await asyncio.wait({receiving, exiting}, return_when=asyncio.FIRST_COMPLETED)
        if exiting.done():
            await asyncio.wait({receiving}, timeout=_LAST_WORDS_S)
        if receiving.done() and (fault := receiving.exception()) is not None:
            self._kill(f"the tool host broke the protocol: {fault}")
        self._retire(self._fault)
        await asyncio.wait({exiting}, timeout=_CLOSE_GRACE_S)
        self._kill(self._fault)
        exit_code = await exiting
        receiving.cancel()
        await self._channel.abort()
        event = "tool_host_stopped" if exit_code == 0 else "tool_host_died"
        log.info(event, pid=self._process.pid, exit_code=exit_code)

    async def _receive(self) -> None:
        async for message in self._channel.messages():
            self._on_message(message)

    def _on_message(self, message: Message) -> None:
        match message.kind:
            case Kind.HELLO:
                Hello.unpack(message.payload)
                if not self._hello.done():
                    self._hello.set_result(None)
            case Kind.RESULT:
                result = Result.unpack(message.payload)
                self._end(message.call, ToolResult(result.media_type, result.content))
                self._hang_up_if_idle()
            case Kind.ERROR:
                self._on_error(message.call, Error.unpack(message.payload))
            case Kind.PROGRESS:
                self._on_progress(message.call, Progress.unpack(message.payload))
            case Kind.PING:
                self._channel.send(Kind.PONG, message.call, message.payload)
            case Kind.PONG:
                pass
            case _:
                raise EnvelopeError(f"{message.kind.name.lower()} is not for a client", offset=4)

    def _on_error(self, number: int, error: Error) -> None:
        if error.code is ErrorCode.SHUTTING_DOWN:
            self._is_retiring = True
        elif number == 0:
            raise EnvelopeError(error.text, offset=0)
        self._end(number, _ERRORS[error.code](error.text))
        self._hang_up_if_idle()

    def _on_progress(self, number: int, progress: Progress) -> None:
        call = self._calls.get(number)
        if call is not None and call.on_progress is not None:
            try:
                call.on_progress(progress.percent, progress.text)
            except Exception:  # a listener's fault is no call's
                log.exception("progress_listener_failed")

    def _hang_up_if_idle(self) -> None:
        # A host that shuts down waits for it: had it hung up first, sending could cost us its last messages.
        if self._is_retiring and not self._calls:
            self._channel.hang_up()

    def _end(self, number: int, end: ToolResult | ToolError) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            return  # cancelled and no longer waited for
        self.num_answers += 1
        if isinstance(end, ToolError):
            call.ended.set_exception(end)
        else:
            call.ended.set_result(end)


async def _start_process(settings: HostSettings) -> tuple[asyncio.subprocess.Process, Channel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        channel = await Channel.over(ours, settings.max_message_bytes)
        try:
            process = await asyncio.create_subprocess_exec(
                *settings.command,
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,  # our stdout is for data; what tools print joins the logs
                start_new_session=True,  # Ctrl-C is the server's to handle
            )
        except BaseException:
            await channel.abort()
            raise
    return process, channel


def _mark_retrieved(future: "asyncio.Future[Any]") -> None:
    """A call may be given up before anyone asks how it ended."""
    if not future.cancelled():
        future.exception()
