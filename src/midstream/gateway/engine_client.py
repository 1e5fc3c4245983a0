"""Owns the gateway's end of the engine's socket and the engine process's life. Never looks into an output.

A peer's death is an EOF: every open request then gets its one `Finished`, and the process is started again.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

import msgspec
import structlog

from midstream.errors import EngineDied, EngineLoading, EnvelopeError, OperatorError, QueueFull
from midstream.messages import (
    Abort,
    AddRequest,
    Command,
    Commands,
    EngineMessage,
    Finished,
    FinishReason,
    Hello,
    Inject,
    LoadFailed,
    Resume,
    SequenceOutput,
    StepOutput,
    TokenCounts,
)
from midstream.protocol.framing import FrameReader, encode_frame
from midstream.telemetry.metrics import Metrics

log = structlog.get_logger()

Sink = Callable[[SequenceOutput], None]
"""Takes one request's outputs, in order, on the event loop. The last one has `finished`."""

_RECEIVE_BYTES = 1 << 20
_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_GRACE_S = 5.0
"""How long an engine whose socket is closed may take to end before it is killed."""


class EngineProcess(Protocol):
    """A running engine, in a process of its own or (in tests) in a thread."""

    pid: int | None

    async def wait(self) -> str:
        """Wait for its end; returns how it ended, in words."""

    def kill(self) -> None: ...


Launch = Callable[[socket.socket], Awaitable[EngineProcess]]
"""Starts an engine that speaks on the given end of a socket pair."""


class EngineState(Enum):
    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


class EngineClient:
    """Commands out, one message a loop turn; outputs in, to whoever asked."""

    def __init__(self, launch: Launch, *, max_open: int, metrics: Metrics) -> None:
        self.state = EngineState.LOADING
        self.hello: Hello | None = None
        self.pid: int | None = None
        self._launch = launch
        self._max_open = max_open
        self._metrics = metrics
        self._sinks: dict[int, Sink] = {}
        self._commands: list[Command] = []
        self._writer: asyncio.StreamWriter | None = None
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._first_hello: asyncio.Future[Hello] | None = None
        self._next_id = 0
        self._is_closing = False

    @property
    def num_open(self) -> int:
        return len(self._sinks)

    async def start(self) -> Hello:
        """Start the engine and wait until it is loaded. Raises OperatorError when it cannot load."""
        self._first_hello = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._supervise(), name="engine supervisor")
        return await asyncio.shield(self._first_hello)

    async def close(self) -> None:
        """End the engine; open requests get their `Finished`."""
        self._is_closing = True
        if self._writer is not None:
            self._writer.close()
        if self._process is not None and self.state is EngineState.LOADING:
            self._process.kill()  # it looks at its socket only once it has loaded
        if self._task is not None:
            await self._task
        if self._first_hello is not None and not self._first_hello.done():
            self._first_hello.cancel()

    def next_request_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def check_ready(self) -> None:
        """Raises EngineLoading or EngineDied while there is no engine to take a request."""
        if self.state is EngineState.LOADING:
            raise EngineLoading("the model is still loading; try again in a few seconds")
        if self.state is EngineState.DEAD:
            raise EngineDied("the engine process died and is being started again; try again in a few seconds")

    def submit(self, request: AddRequest, sink: Sink) -> None:
        """Raises EngineLoading, EngineDied or QueueFull; then nothing has been accepted."""
        self.check_ready()
        if len(self._sinks) >= self._max_open:
            raise QueueFull(f"{len(self._sinks)} requests are open; the limit is {self._max_open}; try again later")
        self._sinks[request.request_id] = sink
        self._send(request)

    def abort(self, request_id: int) -> None:
        """Stop a request within one step. Its sink hears nothing more."""
        if self._sinks.pop(request_id, None) is not None:
            self._send(Abort(request_id))

    def end_all(self, why: str) -> None:
        """Stop every open request with an error."""
        for request_id in self._sinks:
            self._send(Abort(request_id))
        self._fail_sinks(why)

    def resume(self, command: Resume | Inject) -> None:
        if command.request_id in self._sinks:
            self._send(command)

    def _send(self, command: Command) -> None:
        if not self._commands:
            asyncio.get_running_loop().call_soon(self._flush)
        self._commands.append(command)

    def _flush(self) -> None:
        commands, self._commands = self._commands, []
        if self._writer is not None and commands:
            self._writer.write(encode_frame(Commands(commands)))

    async def _supervise(self) -> None:
        backoff_s = _MIN_BACKOFF_S
        while not self._is_closing:
            self.state = EngineState.LOADING
            last_hello = self.hello
            failure = await self._run_once()
            self._commands = []
            self._fail_sinks(f"the engine process died: {failure}")
            if self._is_closing:
                return
            assert self._first_hello is not None
            if not self._first_hello.done():
                self._first_hello.set_exception(OperatorError(failure))
                return
            was_ready = self.hello is not last_hello
            backoff_s = _MIN_BACKOFF_S if was_ready else min(backoff_s * 2, _MAX_BACKOFF_S)
            self._metrics.engine_restarts.inc()
            log.error("engine_died", how=failure, restart_in_s=backoff_s)
            await asyncio.sleep(backoff_s)

    async def _run_once(self) -> str:
        """One engine process from start to end. Returns how it ended."""
        ours, theirs = socket.socketpair()
        try:
            process = self._process = await self._launch(theirs)
        except OSError as error:
            ours.close()
            self.state = EngineState.DEAD
            return f"it cannot be started: {error}"
        finally:
            theirs.close()
        self.pid = process.pid
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        failure = None
        if self._is_closing:
            process.kill()
        else:
            self._writer = writer
            failure = await self._receive(reader)
        # No request is taken from here on: nobody would read it.
        self.state = EngineState.DEAD
        self._writer = None
        writer.close()
        how = await _end_of(process)
        self._process = None
        self._metrics.forget_engine()
        return failure or how

    async def _receive(self, reader: asyncio.StreamReader) -> str | None:
        frames = FrameReader()
        decoder = msgspec.msgpack.Decoder(EngineMessage)
        try:
            while data := await reader.read(_RECEIVE_BYTES):
                for body in frames.feed(data):
                    match decoder.decode(body):
                        case StepOutput() as output:
                            self._deliver(output)
                        case Hello() as hello:
                            self._on_hello(hello)
                        case LoadFailed(message):
                            return message
        except ConnectionError:
            pass  # the same news as an EOF: how the process ended tells why
        except (EnvelopeError, msgspec.MsgspecError) as error:
            return f"it sent what is no message: {error}"
        return None

    def _on_hello(self, hello: Hello) -> None:
        self.hello = hello
        self.state = EngineState.READY
        log.info("engine_ready", max_model_len=hello.max_model_len, load_s=round(hello.load_s, 2), pid=self.pid)
        if self._first_hello is not None and not self._first_hello.done():
            self._first_hello.set_result(hello)

    def _deliver(self, message: StepOutput) -> None:
        self._metrics.observe_engine(message.stats)
        for output in message.outputs:
            is_last = output.finished is not None
            sink = self._sinks.pop(output.request_id, None) if is_last else self._sinks.get(output.request_id)
            if sink is not None:
                sink(output)

    def _fail_sinks(self, why: str) -> None:
        sinks, self._sinks = self._sinks, {}
        finished = Finished(FinishReason.ERROR, error=why)
        for request_id, sink in sinks.items():
            sink(SequenceOutput(request_id, [], [], TokenCounts(0, 0, 0, 0, 0, 0), finished=finished))


async def _end_of(process: EngineProcess) -> str:
    """How the process ended; one that goes on without its socket is killed."""
    try:
        async with asyncio.timeout(_GRACE_S):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()
