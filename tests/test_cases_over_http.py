"""A sample of cuts of every case, through a scripted model behind real HTTP."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from midstream.engine.batch import Batch
from midstream.modelfile.tokenizer import Tokenizer
from midstream.protocol.btif import Layout
from midstream.tools.registry import Registry
from tests.support import host_tools
from tests.support.cases import (
    Case,
    assert_dispatched,
    assert_matches,
    by_char,
    load_cases,
    required,
    seeded_random,
    whole,
)
from tests.support.scripted import ScriptedRunner, Turn
from tests.support.server import InlineTransport, RunningServer, running_server
from tests.support.wire import Choice, Transcript, check_chat_stream
from tests.support.wire_calls import Call

CASES = load_cases()
BY_ID = {case.id: case for case in CASES}
SERVER_TOOLS = ("tests.support.host_tools:run_shell",)
CHECKED = {f"I{number}" for number in (*range(1, 19), 20)}
"""The codes that `check_chat_stream` holds every stream to."""
REASONING = ("<think>", "</think>")

# What a grammar does not let a model write: a call that is malformed or ends in its middle, text where calls are due,
# arguments in another order than the schema's, a number in quotes.
ONLY_UNCONSTRAINED = {"c015", "c016", "c031", "c033", "c034", "c091", "c100"}


def cuts(case: Case) -> list[Turn]:
    if case.byte_chunks is not None:
        return [case.byte_chunks, [b"".join(case.byte_chunks)]]
    text = case.model_output
    spelled_out = [pieces for label, pieces in required(case) if label != "required whole"]
    return [whole(text), *spelled_out, *seeded_random(text, 2), by_char(text)]


SCRIPTS: dict[str, list[Turn]] = {
    f"{case.id}-{number}": [pieces, []] for case in CASES for number, pieces in enumerate(cuts(case))
}


class Stand:
    """A server with everything that a test of it looks at."""

    server: RunningServer

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.runner = ScriptedRunner(tokenizer, SCRIPTS)
        [tool] = Registry.load(SERVER_TOOLS).tools.values()
        layout = Layout.of(tool.spec.parameters)
        self.tools = InlineTransport(
            {tool.spec.tool_id: layout}, {tool.spec.tool_id: lambda arguments: self.run_shell(**arguments)}
        )
        self.run_shell = host_tools.run_shell

    def body(self, case: Case, script: str, **fields: Any) -> dict[str, Any]:
        body = {
            "model": "smollm2-135m",
            "messages": [{"role": "user", "content": f"[script {script}]"}],
            "temperature": 0,
            **case.request,
        }
        if case.is_server_mode:
            body["server_tools"] = ["run_shell"]
        else:
            body["tools"] = case.tools
        if case.engine.get("finish") == "length":
            body["max_tokens"] = self.runner.num_tokens(SCRIPTS[script][0])
        return body | fields

    @property
    def url(self) -> str:
        return f"{self.server.base_url}/v1/chat/completions"


@contextmanager
def stand(tokenizer: Tokenizer, dialect: str, *, constrains: bool) -> Iterator[Stand]:
    stand = Stand(tokenizer)
    with running_server(
        tokenizer,
        lambda: stand.runner,
        transport=stand.tools,
        constrains=constrains,
        reasoning_markers=REASONING,
        tools=SERVER_TOOLS,
        tool_dialect=dialect,
        tool_timeout_s=BY_ID["c119"].action["tool_timeout_s"],
        num_blocks=2048,
        max_model_len=16384,
    ) as server:
        stand.server = server
        yield stand


@pytest.fixture(scope="module")
def stands(tokenizer: Tokenizer) -> Iterator[Callable[[Case, bool], Stand]]:
    """A stand for a case's dialect, started when it is first asked for."""
    with ExitStack() as stack:
        started: dict[tuple[str, bool], Stand] = {}

        def get(case: Case, constrains: bool) -> Stand:
            dialect = "hermes" if case.dialect == "plain" else case.dialect
            key = dialect, constrains
            if key not in started:
                started[key] = stack.enter_context(stand(tokenizer, dialect, constrains=constrains))
            return started[key]

        yield get


async def send_all(stand: Stand, bodies: list[dict[str, Any]]) -> list[httpx2.Response]:
    async with httpx2.AsyncClient(timeout=60) as client:
        return await asyncio.gather(*(client.post(stand.url, json=body) for body in bodies))


def calls_of_events(transcript: Transcript) -> list[Call]:
    """A server's calls: those that ran, with their arguments."""
    calls = [data["call"] for _, data in transcript.events]
    return [
        Call(call["id"], call["name"], json.dumps(call["arguments"])) for call in calls if call["state"] == "running"
    ]


def check_streamed(case: Case, response: httpx2.Response) -> None:
    assert response.status_code == 200, response.text
    n = case.request.get("n", 1)
    transcript = check_chat_stream(response.content, n=n, tool_choice=case.request.get("tool_choice"))
    assert transcript.error is None
    errored = any(data["call"].get("error") for _, data in transcript.events)
    for choice in transcript.choices:
        calls = calls_of_events(transcript) if case.is_server_mode else choice.tool_calls
        assert_matches(case, choice.content, calls, choice.finish_reason, choice.reasoning, errored=errored)
        if case.is_server_mode:
            assert choice.tool_calls == []
    assert set(case.assert_stream) <= CHECKED


def check_whole(case: Case, response: httpx2.Response) -> None:
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(case.request.get("n", 1)))
    for choice in choices:
        message = choice["message"]
        if case.is_server_mode:
            assert "tool_calls" not in message
            done = message["server_calls"]
            calls = [Call(call["id"], call["name"], json.dumps(call["arguments"])) for call in done]
        else:
            given = message.get("tool_calls", [])
            calls = [Call(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in given]
        assert_matches(case, message["content"], calls, choice["finish_reason"], message.get("reasoning_content"))


def runs_of(stand: Stand) -> list[tuple[str, dict[str, Any]]]:
    return [("run_shell", arguments) for _, arguments in stand.tools.ran]


RUNS = [
    pytest.param(case, constrains, id=f"{case.id}-{'grammar' if constrains else 'free'}")
    for case in CASES
    for constrains in (True, False)
    if not (constrains and case.id in ONLY_UNCONSTRAINED)
]


@pytest.mark.parametrize(("case", "constrains"), RUNS)
def test_a_case_over_http(stands: Callable[[Case, bool], Stand], case: Case, constrains: bool) -> None:
    stand = stands(case, constrains)
    stand.tools.ran.clear()
    stand.runner.refused.clear()
    scripts = [script for script in SCRIPTS if script.startswith(f"{case.id}-")]
    streamed = [stand.body(case, script, stream=True) for script in scripts]
    unstreamed = [stand.body(case, script) for script in (scripts[0], scripts[-1])]
    for body in unstreamed:
        body.pop("stream_options", None)
    responses = asyncio.run(send_all(stand, [*streamed, *unstreamed]))
    for response in responses[: len(scripts)]:
        check_streamed(case, response)
    for response in responses[len(scripts) :]:
        check_whole(case, response)
    assert stand.runner.refused == [], "the grammar refused what the case writes"
    if case.is_server_mode:
        runs = runs_of(stand)
        assert len(runs) == len(responses)
        for run in runs:
            assert_dispatched(case, [run])
    assert_nothing_is_left(stand)


def assert_nothing_is_left(stand: Stand) -> None:
    engine = stand.server.engine
    wait_for(lambda: not engine.sequences)
    assert not engine.scheduler.parked
    assert not engine.scheduler.running


def wait_for(condition: Callable[[], Any], limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


# --- what only one case asks ---


@pytest.fixture
def own_stand(tokenizer: Tokenizer) -> Iterator[Stand]:
    """One whose tool has not failed to answer other tests."""
    with stand(tokenizer, "hermes", constrains=True) as fresh:
        yield fresh


def test_a_timed_out_tools_fate_is_told_to_client_and_model(own_stand: Stand) -> None:
    case, stand = BY_ID["c119"], own_stand
    sequences: list[str] = []
    stand.runner.before_step = lambda batch: sequences.append(stand.runner.text(batch.rows[0].seq.token_ids))
    try:
        [response] = asyncio.run(send_all(stand, [stand.body(case, "c119-0", stream=True)]))
    finally:
        stand.runner.before_step = lambda batch: None
    transcript = check_chat_stream(response.content)
    states = [data["call"]["state"] for _, data in transcript.events]
    assert states == ["routed", "running", "timed_out", "injected"]
    assert case.expected["tool_result_status"] == "timeout"
    assert "error: timed out after 2 s" in sequences[-1]


class Gate:
    """Holds the engine before the first step at which `is_due`, until the test lets it go."""

    def __init__(self, is_due: Callable[[Batch], bool]) -> None:
        self.is_held = threading.Event()
        self.steps_after = 0
        self._is_due = is_due
        self._is_open = threading.Event()

    def __call__(self, batch: Batch) -> None:
        if self._is_open.is_set():
            self.steps_after += 1
        elif self._is_due(batch):
            self.is_held.set()
            assert self._is_open.wait(20)

    def let_go(self) -> None:
        self._is_open.set()


def leave_after(url: str, body: dict[str, Any], is_enough: Callable[[bytes], bool]) -> bytes:
    """Read a stream until it has said enough, then close the connection."""
    raw = b""
    with httpx2.stream("POST", url, json=body, timeout=30) as response:
        for chunk in response.iter_bytes():
            raw += chunk
            if is_enough(raw):
                return raw
    raise AssertionError(f"the stream ended before the client left: {raw!r}")


def test_a_client_that_leaves_stops_its_generation_within_a_step(stands: Callable[[Case, bool], Stand]) -> None:
    case = BY_ID["c116"]
    stand = stands(case, True)
    engine = stand.server.engine
    num_free = engine.scheduler.blocks.num_free
    wanted = case.action["disconnect_after_content"]
    num_wanted = stand.runner.num_tokens([wanted])
    gate = Gate(lambda batch: any(row.seq.num_generated >= num_wanted for row in batch.rows))
    stand.tools.ran.clear()
    stand.runner.before_step = gate
    try:
        body = stand.body(case, f"{case.id}-0", stream=True)
        raw = leave_after(stand.url, body, lambda raw: wanted in content_of(raw))
        check_chat_stream(raw, expect_done=False)
        assert gate.is_held.wait(10)
        wait_for(lambda: stand.server.gateway.services.engine.num_open == 0)
        gate.let_go()
        wait_for(lambda: not engine.sequences)
    finally:
        gate.let_go()
        stand.runner.before_step = lambda batch: None
    # The step that was held, and at most the one that was under way when the abort came.
    assert gate.steps_after <= 1
    assert engine.scheduler.blocks.num_free == num_free
    assert stand.tools.ran == []


def content_of(raw: bytes) -> str:
    return choice_of(raw).content


def choice_of(raw: bytes) -> Choice:
    whole_frames = raw[: raw.rfind(b"\n\n") + 2]
    return check_chat_stream(whole_frames, expect_done=False).choices[0]


def test_a_client_that_leaves_while_its_tool_runs_leaves_nothing_behind(own_stand: Stand) -> None:
    case, stand = BY_ID["c117"], own_stand
    engine = stand.server.engine
    num_free = engine.scheduler.blocks.num_free
    is_running, cancelled = threading.Event(), threading.Event()

    async def run_for_ever(cmd: str) -> str:
        is_running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    stand.run_shell = run_for_ever
    try:
        body = stand.body(case, f"{case.id}-0", stream=True)
        raw = leave_after(stand.url, body, lambda raw: b'"state":"running"' in raw and is_running.is_set())
    finally:
        stand.run_shell = host_tools.run_shell
    assert choice_of(raw).finish_reason is None
    assert cancelled.wait(10), "the tool went on for nobody"
    wait_for(lambda: not engine.sequences)
    assert engine.scheduler.blocks.num_free == num_free
    wait_for(lambda: not num_tool_tasks(stand))
    [response] = asyncio.run(send_all(stand, [stand.body(case, f"{case.id}-0", stream=True)]))
    check_streamed(case, response)


def num_tool_tasks(stand: Stand) -> int:
    async def count() -> int:
        return sum(task.get_name().startswith("tool ") for task in asyncio.all_tasks())

    return asyncio.run_coroutine_threadsafe(count(), stand.server.loop).result(10)
