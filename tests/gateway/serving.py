"""Owns the server that the gateway's tests speak to: what its model writes, and when its model and tools move on."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from midstream.engine.batch import Batch
from midstream.modelfile.tokenizer import Tokenizer
from midstream.protocol.btif import Layout
from midstream.tools.registry import Registry
from tests.support.scripted import ScriptedRunner
from tests.support.server import InlineTransport, RunningServer, running_server
from tests.support.wire import Transcript, check_chat_stream

MODEL = "smollm2-135m"
HELLO = "Hello there, I am a scripted model."
BYE = "Bye."
RESULT = '{"departures":54}'
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


STATUS_CALL = call("flight_status", '{"airport": "PVG", "date": "2026-12-02"}')
WEATHER_CALL = call("get_weather", '{"city": "Oslo"}')
ALARM_CALL = call("set_alarm", '{"at": "07:00"}')
LONG = "word " * 150

SCRIPTS: dict[str, list[list[str]]] = {
    "hello": [[HELLO]],
    "bye": [[BYE]],
    "long": [[LONG]],
    "server": [[f"Let me see. {STATUS_CALL}"], ["It had 54 departures."]],
    "server talk": [[f"{STATUS_CALL}{LONG}"], ["It had 54 departures."]],
    "client": [[WEATHER_CALL]],
    "listed": [["\n".join((ALARM_CALL, WEATHER_CALL, ALARM_CALL.replace("7:00", "8:00")))]],
    "client text": [[f"One moment. {WEATHER_CALL}"]],
    "client two": [[f"{WEATHER_CALL}\n{ALARM_CALL}"]],
    "mixed": [[f"{STATUS_CALL}\n{WEATHER_CALL}"]],
    "thinking": [["<think>It asks for a greeting.</think>Hello."]],
    "emoji": [["Grüße 👋🏽 aus 東京."]],
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ALARM = {
    "type": "function",
    "function": {
        "name": "set_alarm",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}


def wait_for(condition: Callable[[], Any], limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


class Gate:
    """Holds whoever passes while it is shut."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.num_held = 0
        self._fault: Exception | None = None

    def open_with(self, fault: Exception) -> None:
        """Open, and let the next one to pass, held or not, raise `fault`."""
        self._fault = fault
        self._is_open.set()

    def shut(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def pass_through(self) -> None:
        self.num_held += 1
        assert self._is_open.wait(30), "the test left the gate shut"
        self.num_held -= 1
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    async def pass_async(self) -> None:
        """As `pass_through`, on an event loop and cancellable."""
        self.num_held += 1
        try:
            while not self._is_open.is_set():
                await asyncio.sleep(0.002)
        finally:
            self.num_held -= 1


class Listener:
    """Reads one answer in a thread of its own; `raw` is what has come so far."""

    def __init__(self, http: httpx2.Client, path: str, body: Any) -> None:
        self.status: int | None = None
        self.headers: httpx2.Headers = httpx2.Headers()
        self.raw = b""
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._read, args=(http, path, body), daemon=True)
        self._thread.start()

    def _read(self, http: httpx2.Client, path: str, body: Any) -> None:
        try:
            with http.stream("POST", path, json=body) as response:
                self.status, self.headers = response.status_code, response.headers
                for piece in response.iter_raw():
                    self.raw += piece
        except Exception as fault:
            self._fault = fault

    def wait_for(self, text: bytes) -> None:
        wait_for(lambda: text in self.raw or not self._thread.is_alive())
        assert text in self.raw, f"it ended without {text!r}: {self.raw[-200:]!r}"

    def join(self) -> bytes:
        """Everything, once the answer has ended; raises what went wrong on the way."""
        self._thread.join(20)
        assert not self._thread.is_alive(), "the answer does not end"
        if self._fault is not None:
            raise self._fault
        return self.raw


@dataclass
class Serving:
    """The running server, its model (one step is held while `model` is shut) and its tools."""

    server: RunningServer
    runner: ScriptedRunner
    transport: InlineTransport
    http: httpx2.Client
    model: Gate = field(default_factory=Gate)
    tools: Gate = field(default_factory=Gate)
    step_s: float = 0.0
    """How long each of the model's steps takes."""

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        return self.http.post(path, json=body, **options)

    def chat(self, script: str = "hello", **fields: Any) -> httpx2.Response:
        return self.post(CHAT, chat_body(script) | fields)

    def stream(self, script: str = "hello", **fields: Any) -> Transcript:
        """A chat stream, checked."""
        response = self.chat(script, stream=True, **fields)
        assert response.status_code == 200, response.text
        options: dict[str, Any] = fields.get("stream_options") or {}
        return check_chat_stream(
            response.content,
            include_usage=bool(options.get("include_usage")),
            n=fields.get("n", 1),
            tool_choice=fields.get("tool_choice"),
        )

    def listen(self, script: str = "hello", **fields: Any) -> Listener:
        """A chat stream that is read beside the test."""
        return Listener(self.http, CHAT, chat_body(script, stream=True, **fields))

    def metric(self, name: str, **labels: str) -> float:
        return self.server.metric(name, **labels)

    @property
    def num_open(self) -> int:
        return self.server.gateway.services.engine.num_open

    def is_at_rest(self) -> bool:
        """Nothing runs, nothing waits, nothing is held."""
        blocks = self.server.engine.scheduler.blocks
        return not self.server.engine.sequences and self.num_open == 0 and blocks.num_free == blocks.num_blocks


def chat_body(script: str = "hello", **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"[script {script}]"}],
        "temperature": 0,
    } | fields


def completion_body(script: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": f"[script {script}]", "temperature": 0} | fields


@contextmanager
def serving(tokenizer: Tokenizer, **settings: Any) -> Iterator[Serving]:
    """A server with the demo tools, which all answer `RESULT`, at once unless `tools` is shut."""
    specs = Registry.load(("demo",)).specs()
    functions: dict[int, Any] = {}
    transport = InlineTransport({spec.tool_id: Layout.of(spec.parameters) for spec in specs}, functions)
    runner = ScriptedRunner(tokenizer, SCRIPTS)
    settings = {"tools": ("demo",)} | settings
    with (
        running_server(tokenizer, lambda: runner, transport=transport, **settings) as server,
        httpx2.Client(base_url=server.base_url, timeout=30) as http,
    ):
        wait_for(lambda: server.engines)
        served = Serving(server, runner, transport, http)

        async def run_tool(arguments: dict[str, Any]) -> str:
            await served.tools.pass_async()
            return RESULT

        def before_step(batch: Batch) -> None:
            served.model.pass_through()
            time.sleep(served.step_s)

        functions.update({spec.tool_id: run_tool for spec in specs})
        runner.before_step = before_step
        try:
            yield served
        finally:
            served.model.open()
            served.tools.open()
