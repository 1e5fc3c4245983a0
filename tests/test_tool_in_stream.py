"""The heart, with a scripted model: what is routed, dispatched, decoded and computed, and when."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from midstream.engine.batch import Batch
from midstream.messages import (
    AddRequest,
    CallClosed,
    CallNamed,
    CallReady,
    CallRouted,
    ChoiceMode,
    Resume,
    TextDelta,
    ToolChoice,
    ToolPlan,
)
from midstream.modelfile.tokenizer import Tokenizer
from midstream.protocol.btif import Layout, decode_arguments
from midstream.tools.registry import Registry
from tests.support.engines import GREEDY, SteppedEngine
from tests.support.scripted import ScriptedRunner
from tests.support.server import InlineTransport, RunningServer, running_server
from tests.support.wire import Transcript, check_chat_stream

STATUS_CALL = (
    '<tool_call>\n{"name": "flight_status", "arguments": {"airport": "PVG", "date": "2026-12-02"}}\n</tool_call>'
)
RATE_CALL = '<tool_call>\n{"name": "on_time_rate", "arguments": {"airport": "PVG"}}\n</tool_call>'
TALK = "I am looking it up for you, one moment please."
SCRIPTS: dict[str, list[list[str]]] = {
    "one": [[f"Let me see. {STATUS_CALL}{TALK}"], ["It had 54 departures."]],
    "mixed": [[f'{STATUS_CALL}\n<tool_call>\n{{"name": "pay", "arguments": {{"sum": 3}}}}\n</tool_call>'], ["Paid."]],
    "two": [[f"{STATUS_CALL}\n{RATE_CALL}"], ["54 departures, 77 percent on time."]],
}
AUTO = ToolChoice()
RESULT = '{"departures":54}'


def demo_registry() -> Registry:
    return Registry.load(("demo",))


def plan(choice: ToolChoice = AUTO) -> ToolPlan:
    return ToolPlan("hermes", demo_registry().specs(), choice)


class Heart:
    """A stepped engine with one request of script `one` in it."""

    def __init__(self, tokenizer: Tokenizer, choice: ToolChoice = AUTO, script: str = "one") -> None:
        self.stepped = SteppedEngine(tokenizer, SCRIPTS)
        self.prompt = tokenizer.encode(f"user: [script {script}]\nassistant: ")
        self.stepped.port.commands.append(AddRequest(1, self.prompt, GREEDY, tool_plan=plan(choice)))

    def events(self, kind: type) -> list[Any]:
        return [event for event in self.stepped.port.events(1) if isinstance(event, kind)]

    def written(self) -> str:
        token_ids = [i for output in self.stepped.port.outputs for i in output.token_ids]
        return self.stepped.tokenizer.decode(token_ids)


@pytest.fixture
def heart(tokenizer: Tokenizer) -> Heart:
    return Heart(tokenizer)


def test_a_call_is_routed_at_the_token_that_makes_its_name_unambiguous(heart: Heart) -> None:
    while not heart.events(CallRouted):
        heart.stepped.step()
    # flight_search is enabled too: nothing before the `s` after `flight_s` can tell them apart.
    [routed] = heart.events(CallRouted)
    assert routed.name == "flight_status"
    name = heart.written().rpartition('{"name": "')[2].partition('"')[0]
    assert name.startswith("flight_st")
    before_last = heart.stepped.tokenizer.decode(heart.stepped.port.outputs[-1].token_ids[:1])
    assert not heart.written().rpartition(before_last)[0].endswith("flight_st")


def test_a_read_only_tool_is_ready_before_its_call_closes(heart: Heart) -> None:
    heart.stepped.run_until_idle()
    events = heart.stepped.port.events(1)
    kinds = [type(event) for event in events if not isinstance(event, TextDelta)]
    assert kinds == [CallRouted, CallNamed, CallReady, CallClosed]
    [ready], [closed] = heart.events(CallReady), heart.events(CallClosed)
    assert not ready.is_closed
    assert ready.mark.token_index < closed.mark.token_index
    layout = Layout.of(demo_registry().by_name["flight_status"].spec.parameters)
    assert decode_arguments(ready.frame, layout) == {"airport": "PVG", "date": "2026-12-02"}


def test_decoding_goes_on_after_the_call_then_the_sequence_parks_and_costs_nothing(heart: Heart) -> None:
    heart.stepped.run_until_idle()
    assert heart.written() == SCRIPTS["one"][0][0]
    last = heart.stepped.port.outputs[-1]
    assert last.is_parked
    assert last.finished is None
    [seq] = heart.stepped.scheduler.parked
    assert seq.block_table, "a parked sequence keeps its blocks"
    num_steps = len(heart.stepped.runner.steps)
    for _ in range(5):
        heart.stepped.step()
    assert len(heart.stepped.runner.steps) == num_steps, "a parked sequence was computed"


def test_an_injected_result_is_computed_once_and_nothing_else_again(heart: Heart) -> None:
    heart.stepped.run_until_idle()
    injected = heart.stepped.tokenizer.encode(f"\nTool result: {RESULT}\nassistant: ")
    heart.stepped.port.commands.append(Resume(1, injected, plan()))
    heart.stepped.run_until_idle()
    counts = heart.stepped.port.outputs[-1].counts
    assert heart.stepped.port.outputs[-1].finished is not None
    assert heart.written() == SCRIPTS["one"][0][0] + SCRIPTS["one"][1][0]
    assert counts.prompt == len(heart.prompt)
    assert counts.injected == len(injected)
    # The last token of all ends the answer: nothing comes after it, so it needs no KV.
    assert counts.computed == counts.prompt + counts.generated + counts.injected - 1
    assert sum(num for step in heart.stepped.runner.steps for _, num in step) == counts.computed


def test_forced_tokens_cost_no_pass_of_their_own(tokenizer: Tokenizer) -> None:
    heart = Heart(tokenizer, ToolChoice(ChoiceMode.NAMED, ("flight_status",)), script="two")
    heart.stepped.run_until_idle()
    [routed], [ready] = heart.events(CallRouted), heart.events(CallReady)
    assert routed.mark.pass_number == 0, "a named tool is known before anything is sampled"
    assert heart.written() == STATUS_CALL, "a named choice makes one call and ends the turn"
    counts = heart.stepped.port.outputs[-1].counts
    assert ready.mark.pass_number == counts.passes
    assert counts.passes < counts.generated / 2
    assert not heart.stepped.runner.refused


class HeldTools:
    """The demo tools' specs; every run waits until the test releases it."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.registry = demo_registry()
        layouts = {tool_id: Layout.of(tool.spec.parameters) for tool_id, tool in self.registry.tools.items()}
        self.transport = InlineTransport(layouts, dict.fromkeys(layouts, self._run))
        self.num_running = 0
        self.most_running = 0

    def release_when(self, condition: Callable[[], Any]) -> None:
        def target() -> None:
            wait_for(condition)
            self.release.set()

        threading.Thread(target=target, daemon=True).start()

    async def _run(self, arguments: dict[str, Any]) -> str:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.to_thread(self.release.wait, 20)
        self.num_running -= 1
        return RESULT


@pytest.fixture
def tools() -> HeldTools:
    return HeldTools()


@pytest.fixture
def runner(tokenizer: Tokenizer) -> ScriptedRunner:
    return ScriptedRunner(tokenizer, SCRIPTS)


@pytest.fixture
def server(tokenizer: Tokenizer, runner: ScriptedRunner, tools: HeldTools) -> Iterator[RunningServer]:
    with running_server(tokenizer, lambda: runner, transport=tools.transport, tools=("demo",)) as server:
        yield server


def request(server: RunningServer, script: str, **fields: Any) -> httpx2.Response:
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": f"[script {script}]"}],
        "server_tools": "all",
        "temperature": 0,
    }
    return httpx2.post(f"{server.base_url}/v1/chat/completions", json=body | fields, timeout=30)


def stream(server: RunningServer, script: str, **fields: Any) -> Transcript:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = request(server, script, **options, **fields)
    assert response.status_code == 200, response.text
    return check_chat_stream(response.content, include_usage=True)


def states(transcript: Transcript) -> list[tuple[str, str]]:
    return [(data["call"]["name"], data["call"]["state"]) for _, data in transcript.events]


def assert_nothing_computed_twice(transcript: Transcript) -> None:
    usage = transcript.usage
    assert usage is not None
    kept = usage["prompt_tokens"] + usage["completion_tokens"] + usage["injected_tokens"]
    assert usage["computed_tokens"] == kept - 1, "the end token alone needs no KV"


def wait_for(condition: Any, limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def test_over_http_the_tool_runs_while_its_call_and_the_talk_are_decoded(
    server: RunningServer, runner: ScriptedRunner, tools: HeldTools
) -> None:
    written_while_running: list[str] = []

    def before_step(batch: Batch) -> None:
        seq = batch.rows[0].seq
        written = runner.text(seq.token_ids[seq.num_prompt_tokens :])
        if '"2026-12-02"' in written and not tools.release.is_set():
            wait_for(lambda: tools.num_running)
            written_while_running.append(written)

    runner.before_step = before_step
    tools.release_when(lambda: server.engine.scheduler.parked)
    transcript = stream(server, "one")
    assert "</tool_call>" not in written_while_running[0], "the tool did not start before its call had closed"
    assert written_while_running[-1].endswith(TALK), "decoding did not go on while the tool ran"
    assert transcript.content == f"Let me see. {TALK}It had 54 departures."
    assert states(transcript) == [("flight_status", s) for s in ("routed", "running", "done", "injected")]
    assert transcript.choices[0].finish_reason == "stop"
    usage = transcript.usage
    assert usage is not None
    assert (
        usage["computed_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] + usage["injected_tokens"] - 1
    )


def test_the_client_sees_the_run_before_the_calls_last_token(
    server: RunningServer, runner: ScriptedRunner, tools: HeldTools
) -> None:
    tools.release.set()
    transcript = stream(server, "one")
    [running_at] = [number for number, data in transcript.events if data["call"]["state"] == "running"]
    texts = [chunk["choices"][0]["delta"].get("content", "") if chunk["choices"] else "" for chunk in transcript.chunks]
    assert "".join(texts[:running_at]) == "Let me see. "


def test_two_calls_of_one_turn_overlap_in_time_and_are_injected_once(server: RunningServer, tools: HeldTools) -> None:
    tools.release_when(lambda: tools.num_running == 2)
    transcript = stream(server, "two")
    assert tools.most_running == 2
    assert transcript.content == "54 departures, 77 percent on time."
    assert server.metric("tool_calls_finished_total", tool="on_time_rate", outcome="done") == 1
    usage = transcript.usage
    assert usage is not None
    assert (
        usage["computed_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] + usage["injected_tokens"] - 1
    )


def test_the_same_without_streaming(server: RunningServer, tools: HeldTools) -> None:
    tools.release.set()
    body = request(server, "one").json()
    [choice] = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == f"Let me see. {TALK}It had 54 departures."
    [call] = choice["message"]["server_calls"]
    assert (call["name"], call["state"], call["result"]) == ("flight_status", "done", RESULT)


def test_the_next_turn_of_a_client_that_keeps_only_text_goes_on_from_the_exact_tokens(
    server: RunningServer, tools: HeldTools
) -> None:
    tools.release.set()
    first = stream(server, "one")
    messages = [
        {"role": "user", "content": "[script one]"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "[script two]"},
    ]
    second = stream(server, "two", messages=messages)
    assert first.usage is not None
    assert second.usage is not None
    kept = first.usage["prompt_tokens"] + first.usage["completion_tokens"] + first.usage["injected_tokens"]
    assert second.usage["prompt_tokens_details"]["cached_tokens"] == kept - 1, "only the end token had no KV"
    assert server.metric("transcript_hits_total") == 1


def test_a_turn_of_both_kinds_of_calls_goes_on_with_both_results(
    server: RunningServer, runner: ScriptedRunner, tools: HeldTools
) -> None:
    tools.release.set()
    parameters = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    client_tools = [{"type": "function", "function": {"name": "pay", "parameters": parameters}}]
    first = request(server, "mixed", tools=client_tools).json()["choices"][0]
    assert first["finish_reason"] == "tool_calls"
    [call] = first["message"]["tool_calls"]
    prompts: list[str] = []
    runner.before_step = lambda batch: prompts.append(runner.text(batch.rows[0].seq.token_ids))
    messages = [
        {"role": "user", "content": "[script mixed]"},
        first["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "paid 3"},
    ]
    request(server, "mixed", tools=client_tools, messages=messages)
    assert server.metric("transcript_hits_total") == 1
    assert f"Tool result: {RESULT}" in prompts[0]
    assert prompts[0].index(f"Tool result: {RESULT}") < prompts[0].index("Tool result: paid 3")
