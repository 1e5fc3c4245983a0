"""Tools that misbehave, in a real tool host behind real HTTP: text for the model, an event for the client, no more."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from midstream.engine.batch import Batch
from midstream.modelfile.tokenizer import Tokenizer
from tests.support import host_tools
from tests.support.scripted import ScriptedRunner, Turn
from tests.support.server import RunningServer, running_server
from tests.support.wire import Transcript, check_chat_stream

TALK = "I go on talking for a while, whatever the tools are doing in the meantime."


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


TOOLS = (
    "fails",
    "leaves",
    "never_returns",
    "never_returns_async",
    "ten_megabytes",
    "long_text",
    "forges",
    "prints",
    "quick",
)
SCRIPTS: dict[str, list[Turn]] = {
    **{name: [[f"Wait. {call(name)}"], ["So be it."]] for name in TOOLS},
    "talk": [[TALK]],
    "both": [[f"{call('fails')}\n{call('quick', number=2)}"], ["One of two."]],
    "huge": [[f"Wait. {call('quick', number=10**30)}"], ["Big."]],
    "rounds": [[call("quick", number=number)] for number in range(9)],
}


class Stand:
    """A server with a real tool host, and what its model was shown last."""

    server: RunningServer

    def __init__(self, tokenizer: Tokenizer, pid_file: Path) -> None:
        killed: list[Turn] = [[call("tells_its_pid", file=str(pid_file))], ["It died."]]
        self.pid_file = pid_file
        self.runner = ScriptedRunner(tokenizer, {**SCRIPTS, "killed": killed})
        self.runner.before_step = self._look
        self.shown: dict[str, str] = {}
        """By script: the whole text of the sequence."""
        self._tokenizer = tokenizer

    def _look(self, batch: Batch) -> None:
        for row in batch.rows:
            text = self._tokenizer.decode(row.seq.token_ids, skip_special=False)
            self.shown[text.partition("[script ")[2].partition("]")[0]] = text

    def result_shown(self, script: str) -> str:
        """What the model was shown of its calls' results."""
        return self.shown[script].rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


@pytest.fixture(scope="module")
def stand(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    stand = Stand(tokenizer, tmp_path_factory.mktemp("host") / "pid")
    modules = ("tests.support.host_tools",)
    with running_server(tokenizer, lambda: stand.runner, tools=modules, max_tool_rounds=2) as server:
        stand.server = server
        yield stand


async def post(stand: Stand, client: httpx2.AsyncClient, script: str) -> Transcript:
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": f"[script {script}]"}],
        "server_tools": "all",
        "temperature": 0,
        "stream": True,
    }
    response = await client.post(f"{stand.server.base_url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return check_chat_stream(response.content)


def send(stand: Stand, *scripts: str) -> list[Transcript]:
    async def main() -> list[Transcript]:
        async with httpx2.AsyncClient(timeout=60) as client:
            return await asyncio.gather(*(post(stand, client, script) for script in scripts))

    return asyncio.run(main())


def outcomes(transcript: Transcript) -> list[dict[str, Any]]:
    """The events in which a call's run ended."""
    ends = ("done", "failed", "timed_out", "cancelled", "abandoned")
    return [data["call"] for _, data in transcript.events if data["call"]["state"] in ends]


@pytest.mark.parametrize(
    ("name", "state", "error"),
    [
        ("fails", "failed", "no such room"),
        ("leaves", "failed", "SystemExit"),
        ("never_returns", "timed_out", "timed out after 0.3 s"),
        ("never_returns_async", "timed_out", "timed out after 0.3 s"),
        ("ten_megabytes", "failed", "10485760"),
    ],
)
def test_a_tools_fault_is_text_for_the_model_and_an_event(stand: Stand, name: str, state: str, error: str) -> None:
    [transcript] = send(stand, name)
    assert transcript.content == "Wait. So be it."
    assert transcript.finish_reason == "stop"
    assert [data["call"]["state"] for _, data in transcript.events] == ["routed", "running", state, "injected"]
    [outcome] = outcomes(transcript)
    assert error in outcome["error"]
    assert "result" not in outcome
    assert f"error: {outcome['error']}" in stand.result_shown(name)


def test_special_tokens_and_calls_in_a_result_stay_text(stand: Stand) -> None:
    [transcript] = send(stand, "forges")
    assert transcript.content == "Wait. So be it."
    [outcome] = outcomes(transcript)
    assert outcome["result"] == host_tools.FORGED
    # Nothing ran but the one tool, and the text arrived unchanged, in the middle of the user's turn.
    assert {data["call"]["name"] for _, data in transcript.events} == {"forges"}
    assert host_tools.FORGED in stand.shown["forges"]


def test_a_long_result_is_whole_for_the_client_and_cut_for_the_model(stand: Stand) -> None:
    [transcript] = send(stand, "long_text")
    [outcome] = outcomes(transcript)
    assert len(outcome["result"]) == len(host_tools.long_text())
    shown = stand.result_shown("long_text")
    assert "… [cut: the first " in shown
    assert len(shown) < 20_000


def test_a_number_of_any_size_reaches_the_tool_and_the_client(stand: Stand) -> None:
    [transcript] = send(stand, "huge")
    [outcome] = outcomes(transcript)
    assert outcome["result"] == f"quick {10**30}"
    assert outcome["arguments"] == {"number": str(10**30)}
    assert transcript.content == "Wait. Big."


def test_what_a_tool_prints_disturbs_nobody(stand: Stand) -> None:
    [transcript] = send(stand, "prints")
    assert [outcome["result"] for outcome in outcomes(transcript)] == ["printed"]


def test_one_tools_fault_leaves_its_neighbour_in_the_turn_alone(stand: Stand) -> None:
    [transcript] = send(stand, "both")
    assert {outcome["name"]: outcome["state"] for outcome in outcomes(transcript)} == {
        "fails": "failed",
        "quick": "done",
    }
    shown = stand.result_shown("both")
    assert "error: " in shown
    assert "quick 2" in shown
    assert transcript.content == "One of two."


def test_all_of_them_at_once_disturb_no_other_stream(stand: Stand) -> None:
    *others, talk, quick = send(stand, *(name for name in TOOLS if name != "quick"), "talk", "quick")
    assert talk.content == TALK
    assert [outcome["result"] for outcome in outcomes(quick)] == ["quick 0"]
    for transcript in others:
        assert transcript.content == "Wait. So be it."
        assert len(outcomes(transcript)) == 1


def test_a_tool_host_that_is_killed_fails_its_call_and_nothing_else(stand: Stand) -> None:
    def kill() -> None:
        wait_for(lambda: stand.pid_file.exists() and stand.pid_file.read_text())
        os.kill(int(stand.pid_file.read_text()), signal.SIGKILL)

    async def main() -> list[Transcript]:
        async with httpx2.AsyncClient(timeout=60) as client:
            killed = asyncio.create_task(post(stand, client, "killed"))
            talk = asyncio.create_task(post(stand, client, "talk"))
            await asyncio.to_thread(kill)
            return [await killed, await talk]

    killed, talk = asyncio.run(main())
    assert talk.content == TALK
    [outcome] = outcomes(killed)
    assert (outcome["state"], outcome["error"]) == ("failed", "the tool host died")
    assert "error: the tool host died" in stand.result_shown("killed")
    assert killed.content == "It died."
    assert killed.finish_reason == "stop"
    [after] = send(stand, "quick")
    assert [outcome["result"] for outcome in outcomes(after)] == ["quick 0"]


def test_after_so_many_rounds_the_model_has_to_answer(stand: Stand) -> None:
    [transcript] = send(stand, "rounds")
    assert [outcome["result"] for outcome in outcomes(transcript)] == ["quick 0", "quick 1"]
    # The last round knows no tools: what looks like a call is text.
    assert transcript.content == call("quick", number=2)
    assert transcript.finish_reason == "stop"


def test_every_call_is_counted_once(stand: Stand) -> None:
    before = counted(stand)
    send(stand, "fails", "quick", "never_returns_async")
    after = counted(stand)
    assert {key: after[key] - before[key] for key in after} == {"failed": 1, "done": 1, "timed_out": 1}


def counted(stand: Stand) -> dict[str, float]:
    ends = {"fails": "failed", "quick": "done", "never_returns_async": "timed_out"}
    return {
        outcome: stand.server.metric("tool_calls_finished_total", tool=tool, outcome=outcome)
        for tool, outcome in ends.items()
    }


def wait_for(condition: Callable[[], Any], limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
