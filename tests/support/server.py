"""Owns a whole server in this process: real HTTP on loopback, a real engine loop in a thread, the test's runner."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from midstream.cli.compose import build_gateway, engine_options, new_id, tool_host_command, watch_factory
from midstream.config import Config
from midstream.engine.build import KVBudget, build_engine
from midstream.engine.loop import Engine, Runner
from midstream.engine.port import SocketPort
from midstream.gateway.app import create_app
from midstream.gateway.server import Server
from midstream.gateway.state import Gateway
from midstream.gateway.tool_plans import ToolPlans
from midstream.messages import Hello
from midstream.modelfile.tokenizer import Tokenizer
from midstream.protocol.framing import encode_frame
from midstream.routing.watching.dialects import dialect_named
from midstream.telemetry.metrics import Metrics
from midstream.tools.python import PythonTransport
from midstream.tools.transport import CallHandle, OnProgress, ToolResult, Transport


class ThreadEngine:
    """The engine's loop in a thread of this process, on the other end of the same socket."""

    pid: int | None = None

    def __init__(self, sock: socket.socket, run: Callable[[socket.socket], None]) -> None:
        self._sock = sock
        self._ended = asyncio.Event()
        self._how = "the engine stopped"
        loop = asyncio.get_running_loop()

        def target() -> None:
            try:
                run(sock)
            except EOFError:
                pass
            except BaseException as error:
                self._how = repr(error)
            finally:
                sock.close()
                loop.call_soon_threadsafe(self._ended.set)

        self._thread = threading.Thread(target=target, name="engine", daemon=True)
        self._thread.start()

    async def wait(self) -> str:
        await self._ended.wait()
        return self._how

    def kill(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)


@dataclass
class RunningServer:
    base_url: str
    gateway: Gateway
    server: Server
    loop: asyncio.AbstractEventLoop
    engines: list[Engine] = field(default_factory=list)
    """The engines that ran, the newest last."""

    @property
    def engine(self) -> Engine:
        return self.engines[-1]

    def metric(self, name: str, **labels: str) -> float:
        value = self.gateway.services.metrics.registry.get_sample_value(f"midstream:{name}", labels)
        return value or 0.0


@contextmanager
def running_server(
    tokenizer: Tokenizer,
    make_runner: Callable[[], Runner],
    *,
    transport: Transport | None = None,
    num_blocks: int = 1024,
    max_model_len: int = 4096,
    constrains: bool = True,
    reasoning_markers: tuple[str, str] | None = None,
    **settings: Any,
) -> Iterator[RunningServer]:
    """Serve on a free loopback port until the block is left. Without a `transport`, tools run in a real host.

    `constrains=False` switches the grammar off: a script may then break a call's form. `reasoning_markers` makes
    them count though the embedded model has no tokens for them.
    """
    config = Config(port=0, log_level="error", **settings)
    engines: list[Engine] = []

    async def launch(theirs: socket.socket) -> ThreadEngine:
        def run(sock: socket.socket) -> None:
            options = engine_options(config)
            budget = KVBudget(num_blocks, max_model_len)
            make_watch = watch_factory(tokenizer, constrains=constrains)
            engine = build_engine(options, SocketPort(sock), make_runner(), budget, tokenizer, make_watch)
            engines.append(engine)
            sock.sendall(encode_frame(Hello(max_model_len, num_blocks, options.block_size, 0.0)))
            engine.run()

        return ThreadEngine(theirs.dup(), run)

    ready = threading.Event()
    box: dict[str, Any] = {}

    async def main() -> None:
        tools = transport or PythonTransport(tool_host_command(config.tools))
        gateway = build_gateway(config, lambda options: launch, tools, Metrics())
        if reasoning_markers is not None:
            server_tools = gateway.services.dispatcher.tools
            dialect = dialect_named(config.tool_dialect or "hermes")
            frame = gateway.tool_plans.frame
            gateway.tool_plans = ToolPlans(dialect, server_tools, reasoning_markers, new_id, frame)
        server = Server(create_app(gateway), gateway)
        box.update(gateway=gateway, server=server, loop=asyncio.get_running_loop())
        serving = asyncio.create_task(server.serve())
        try:
            await gateway.services.engine.start()
            while not server.started:
                await asyncio.sleep(0.005)
            ready.set()
            await serving
        finally:
            server.should_exit = True
            await serving
            await gateway.services.engine.close()
            await tools.close()

    def target() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        except BaseException as error:
            box["error"] = error
            raise
        finally:
            ready.set()

    thread = threading.Thread(target=target, name="server", daemon=True)
    thread.start()
    assert ready.wait(30), "the server did not start"
    if "error" in box:
        raise box["error"]
    server = box["server"]
    try:
        yield RunningServer(f"http://127.0.0.1:{server.bound_port}", box["gateway"], server, box["loop"], engines)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


Function = Callable[[dict[str, Any]], Any]


class InlineTransport:
    """Runs async test functions on the gateway's own loop: `functions[tool_id](arguments) -> text`."""

    def __init__(self, layouts: dict[int, Any], functions: dict[int, Function]) -> None:
        self._layouts = layouts
        self._functions = functions
        self.opened: list[int] = []
        self.ran: list[tuple[int, dict[str, Any]]] = []
        self.cancelled: list[int] = []

    async def start(self) -> None:
        pass

    def open(self, tool_id: int, deadline_ms: int, on_progress: OnProgress | None = None) -> CallHandle:
        self.opened.append(tool_id)
        return _InlineCall(self, tool_id, deadline_ms)

    async def close(self) -> None:
        pass

    async def call(self, tool_id: int, deadline_ms: int, frame: bytes) -> ToolResult:
        from midstream.errors import ToolFailed, ToolTimedOut
        from midstream.protocol.btif import decode_arguments

        arguments = decode_arguments(frame, self._layouts[tool_id])
        self.ran.append((tool_id, arguments))
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                text = await self._functions[tool_id](arguments)
        except TimeoutError:
            raise ToolTimedOut("timed out") from None
        except ValueError as error:
            raise ToolFailed(str(error)) from None
        return ToolResult("text/plain", text.encode())


class _InlineCall:
    def __init__(self, transport: InlineTransport, tool_id: int, deadline_ms: int) -> None:
        self._transport = transport
        self._tool_id = tool_id
        self._deadline_ms = deadline_ms
        self._task: asyncio.Task[ToolResult] | None = None
        self._is_cancelled = False

    def partial(self, field_index: int, text: str) -> None:
        pass

    def start(self, frame: bytes) -> None:
        if not self._is_cancelled:
            self._task = asyncio.ensure_future(self._transport.call(self._tool_id, self._deadline_ms, frame))

    async def result(self) -> ToolResult:
        from midstream.errors import ToolCancelled

        if self._task is None:
            raise ToolCancelled("cancelled")
        try:
            return await self._task
        except asyncio.CancelledError:
            self._task.cancel()
            raise

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None and not self._task.done():
            self._transport.cancelled.append(self._tool_id)
            self._task.cancel()
