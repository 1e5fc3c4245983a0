"""Owns the wiring of the rooms: the only place that knows all of them. Does no room's work itself.

Three processes come from here: the gateway (`serve`), and its two children, which it starts as
`python -m midstream.cli.compose engine FD` and `… tools FD NAME …`, FD being their end of a socket pair.
Imports stay inside the functions: no process loads what belongs to another.
"""

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from midstream.config import Config
from midstream.errors import MidstreamError, OperatorError
from midstream.messages import EngineOptions

if TYPE_CHECKING:
    from midstream.engine.watch import WatchFactory
    from midstream.gateway.engine_client import EngineClient, EngineProcess, Launch
    from midstream.gateway.state import Gateway
    from midstream.modelfile.tokenizer import Tokenizer
    from midstream.telemetry.metrics import Metrics
    from midstream.tools.transport import Transport

_MODULE = "midstream.cli.compose"
LaunchEngine = Callable[[EngineOptions], "Launch"]

_RARELY = 200_000
"""Objects made and not freed between two collections of an engine that is never idle."""


def engine_options(config: Config, shown_token_ids: Iterable[int] = ()) -> EngineOptions:
    return EngineOptions(
        model=config.model,
        dtype=config.dtype,
        kv_cache_bytes=config.kv_cache_bytes,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        num_threads=config.num_threads,
        kernels=config.kernels,
        quantize=config.quantize,
        device=config.device,
        prompt_lookup=config.prompt_lookup,
        shown_token_ids=tuple(sorted(shown_token_ids)),
    )


# --- the gateway's process ---


def build_gateway(
    config: Config, launch_engine: "LaunchEngine", python_tools: "Transport", metrics: "Metrics"
) -> "Gateway":
    """Everything behind the routes. Starts nothing. Raises OperatorError."""
    from midstream.gateway.conversation import Conversations
    from midstream.gateway.engine_client import EngineClient
    from midstream.gateway.generation import Services
    from midstream.gateway.state import Gateway
    from midstream.gateway.tool_plans import ToolPlans
    from midstream.gateway.transcripts import TranscriptStore
    from midstream.modelfile.chat_template import ChatTemplate
    from midstream.modelfile.gguf import GgufFile
    from midstream.modelfile.resolve import ModelKind, resolve
    from midstream.modelfile.tokenizer import Tokenizer
    from midstream.routing.dispatching.dispatcher import Dispatcher, ServerTool
    from midstream.routing.dispatching.injection import Injector
    from midstream.routing.watching.dialects import dialect_named, dialect_of_template, marker_ids
    from midstream.tools.registry import Registry

    files = resolve(config.model)
    gguf = GgufFile.open(files.path) if files.kind is ModelKind.GGUF else None
    tokenizer = Tokenizer.load(files, gguf)
    template = ChatTemplate.load(files, tokenizer, gguf, config.chat_template)
    if template is None:
        raise OperatorError(f"{files.name} has no chat template; give one with --chat-template")
    if config.tool_dialect is None:
        dialect = dialect_of_template(template.source_text, tokenizer.added_tokens)
    else:
        dialect = dialect_named(config.tool_dialect)
    registry = Registry.load(config.tools)
    tools = {spec.name: ServerTool(spec, python_tools) for spec in registry.specs()}
    shown_token_ids = marker_ids(dialect, tokenizer.special_tokens)
    injector = Injector(template, tokenizer, max_result_tokens=config.max_result_tokens)
    frame = injector.frame(shown_token_ids)
    tool_plans = ToolPlans(dialect, tools, reasoning_markers(tokenizer), new_id, frame)
    dispatcher = Dispatcher(
        tools,
        timeout_s=config.tool_timeout_s,
        budget_s=config.tool_budget_s,
        metrics=metrics,
        new_call_id=tool_plans.new_call_id,
    )
    launch = launch_engine(engine_options(config, shown_token_ids))
    services = Services(
        engine=EngineClient(launch, max_open=config.max_num_seqs + config.max_waiting, metrics=metrics),
        dispatcher=dispatcher,
        injector=injector,
        metrics=metrics,
        max_tool_rounds=config.max_tool_rounds,
    )
    return Gateway(
        config=config,
        model_name=config.served_model_name or files.name,
        model_root=config.model,
        services=services,
        conversations=Conversations(template, tokenizer, TranscriptStore(config.transcript_tokens), metrics),
        tool_plans=tool_plans,
        tokenizer=tokenizer,
        new_id=new_id,
    )


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def reasoning_markers(tokenizer: "Tokenizer") -> tuple[str, str] | None:
    """`<think>` is reasoning only for models that have a token for it: elsewhere it is a word."""
    markers = ("<think>", "</think>")
    return markers if all(marker in tokenizer.added_tokens for marker in markers) else None


def tool_host_command(names: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", _MODULE, "tools", ",".join(names)]


class ChildEngine:
    """The engine in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid: int | None = process.pid

    async def wait(self) -> str:
        code = await self._process.wait()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


def launch_engine(options: EngineOptions) -> "Launch":
    from midstream.protocol.framing import encode_frame

    async def launch(theirs: socket.socket) -> "EngineProcess":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _MODULE,
            "engine",
            str(theirs.fileno()),
            pass_fds=(theirs.fileno(),),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal is the gateway's to handle
            # Threads that spin while they wait lose nine tenths of their speed to any busy neighbour.
            env={"OMP_WAIT_POLICY": "passive"} | os.environ,
        )
        assert process.stdin is not None
        process.stdin.write(encode_frame(options))
        process.stdin.close()
        return ChildEngine(process)

    return launch


async def serve(config: Config, on_ready: Callable[[int], None]) -> None:
    """Run the server until a signal has ended it; `on_ready` gets the port once requests are taken.

    Raises OperatorError when it cannot start.
    """
    from midstream.gateway.app import create_app
    from midstream.gateway.server import Server
    from midstream.telemetry.metrics import Metrics
    from midstream.tools.python import PythonTransport

    python_tools = PythonTransport(tool_host_command(config.tools))
    gateway = build_gateway(config, launch_engine, python_tools, Metrics())
    server = Server(create_app(gateway), gateway)
    serving = asyncio.create_task(server.serve(), name="http server")
    loading = asyncio.create_task(_load(gateway.services.engine, python_tools if config.tools else None))
    try:
        await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            if not serving.done():
                on_ready(server.bound_port)
        await serving
    finally:
        server.should_exit = True
        loading.cancel()
        await asyncio.gather(serving, loading, return_exceptions=True)
        await gateway.services.engine.close()
        await python_tools.close()


async def _load(engine: "EngineClient", python_tools: "Transport | None") -> None:
    """Raises what the first of them raises."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.start())
            if python_tools is not None:
                group.create_task(python_tools.start())
    except ExceptionGroup as faults:
        raise faults.exceptions[0] from None


# --- the engine's process ---


def watch_factory(tokenizer: "Tokenizer", *, constrains: bool = True) -> "WatchFactory":
    """What builds each turn's watch. Without `constrains` it only reads: tests see what a model may write then."""
    from midstream.engine.watch import PlainWatch, TokenWatch
    from midstream.messages import ToolPlan
    from midstream.routing.watching.watch import Watches

    watches = Watches(tokenizer, constrains=constrains)

    def make_watch(plan: ToolPlan | None, num_earlier_calls: int) -> TokenWatch:
        return PlainWatch() if plan is None else watches.make(plan, num_earlier_calls)

    return make_watch


def engine_main(sock: socket.socket, options: EngineOptions) -> None:
    """Load the model, say hello, and step until the gateway hangs up."""
    import gc
    import time

    from midstream.engine.build import build_engine, build_runner
    from midstream.engine.port import SocketPort
    from midstream.messages import Hello, LoadFailed
    from midstream.modelfile.resolve import resolve
    from midstream.modelfile.tokenizer import Tokenizer
    from midstream.protocol.framing import encode_frame

    start_s = time.monotonic()
    try:
        files = resolve(options.model)
        tokenizer = Tokenizer.load(files)
        runner, budget = build_runner(options, files, tokenizer)
        engine = build_engine(
            options, SocketPort(sock), runner, budget, tokenizer, watch_factory(tokenizer), gc.collect
        )
    except MidstreamError as error:
        sock.sendall(encode_frame(LoadFailed(error.message)))
        return
    # What is loaded lives as long as the process: collections need not look at it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_RARELY)  # the loop collects when it is idle
    load_s = time.monotonic() - start_s
    sock.sendall(encode_frame(Hello(budget.max_model_len, budget.num_blocks, options.block_size, load_s)))
    try:
        engine.run()
    except EOFError:
        return


def _read_options() -> EngineOptions:
    import msgspec

    from midstream.protocol.framing import FrameReader

    (body,) = FrameReader().feed(sys.stdin.buffer.read())
    return msgspec.msgpack.decode(body, type=EngineOptions)


# --- the tool host's process ---


def tool_host_main(fd: int, names: Sequence[str]) -> None:
    from midstream.tools.host import run_host
    from midstream.tools.registry import Registry

    run_host(fd, Registry.load(names).tools)


def main(arguments: Sequence[str]) -> None:
    """The entry of the child processes."""
    from midstream.telemetry.logs import configure_logs

    configure_logs("info", as_json=False)
    match arguments:
        case ["engine", fd]:
            engine_main(socket.socket(fileno=int(fd)), _read_options())
        case ["tools", names, fd]:
            tool_host_main(int(fd), [name for name in names.split(",") if name])
        case _:
            sys.exit(f"usage: python -m {_MODULE} engine FD | tools NAMES FD")


if __name__ == "__main__":
    main(sys.argv[1:])
