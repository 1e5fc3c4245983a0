"""`tool_mode: interleaved` over HTTP: the model talks while its tool runs, and the result joins the stream."""

from collections.abc import Iterator

import pytest

from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.dialects.dialect import INTERLEAVED_NOTE
from tests.gateway.serving import SCRIPTS, STATUS_CALL, Serving, call, serving, wait_for
from tests.support.wire import check_chat_stream

RATE_CALL = call("on_time_rate", '{"airport": "PVG"}')
TALK = "It may take a moment.\nLet me say more.\n" + "And more of it, on and on.\n" * 20
ANSWER = "It had 54 departures."
MINE = {
    "talk": [[f"{STATUS_CALL}{TALK}"], [ANSWER]],
    "two talks": [[f"{STATUS_CALL}\n{RATE_CALL}{TALK}"], [ANSWER], ["And more."]],
    "no talk": [[STATUS_CALL], [ANSWER]],
}
TOOLS = {"server_tools": ["flight_status", "on_time_rate"], "tool_mode": "interleaved"}


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    SCRIPTS.update(MINE)
    with serving(tokenizer) as served:
        yield served


@pytest.fixture(autouse=True)
def nothing_is_left(served: Serving) -> Iterator[None]:
    served.step_s = 0.0
    served.tools.open()
    yield
    served.tools.open()
    wait_for(served.is_at_rest)


def states(raw: bytes) -> list[str]:
    return [data["call"]["state"] for _, data in check_chat_stream(raw).events]


def test_the_result_joins_while_the_model_talks(served: Serving) -> None:
    served.tools.shut()
    served.step_s = 0.002
    listener = served.listen("talk", **TOOLS)
    listener.wait_for(b" more")
    served.tools.open()
    raw = listener.join()
    transcript = check_chat_stream(raw)
    assert states(raw) == ["routed", "running", "done", "injected"]
    talked, _, answer = transcript.content.rpartition("\n")
    assert answer == ANSWER
    assert TALK.startswith(talked + "\n")
    assert talked + "\n" != TALK, "the model was not interrupted"
    assert raw.index(b'"injected"') < raw.rindex(b"departure")
    assert transcript.finish_reason == "stop"


def test_a_turn_that_ends_first_waits_for_its_result(served: Serving) -> None:
    served.tools.shut()
    listener = served.listen("no talk", **TOOLS)
    wait_for(lambda: served.server.engine.scheduler.parked)
    served.tools.open()
    raw = listener.join()
    assert states(raw) == ["routed", "running", "done", "injected"]
    assert check_chat_stream(raw).content == ANSWER


def test_each_result_joins_by_itself(served: Serving) -> None:
    transcript = served.stream("two talks", **TOOLS)
    calls = [data["call"] for _, data in transcript.events]
    assert sorted(call["state"] for call in calls).count("injected") == 2
    assert ANSWER in transcript.content
    assert transcript.finish_reason == "stop"


def test_the_whole_answer_is_the_streams(served: Serving) -> None:
    response = served.chat("no talk", **TOOLS).json()
    message = response["choices"][0]["message"]
    assert message["content"] == ANSWER
    assert [call["state"] for call in message["server_calls"]] == ["done"]
    assert response["usage"]["injected_tokens"] > 10


def test_the_next_turn_goes_on_from_the_same_tokens(served: Serving) -> None:
    first = [{"role": "user", "content": "[script talk]"}]
    content = served.stream("talk", **TOOLS).content
    hits = served.metric("transcript_hits_total")
    messages = [*first, {"role": "assistant", "content": content}, {"role": "user", "content": "[script hello]"}]
    response = served.chat("hello", messages=messages, **TOOLS)
    assert response.status_code == 200
    assert served.metric("transcript_hits_total") == hits + 1
    usage = response.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] // 2


def test_the_model_is_told(served: Serving) -> None:
    seen: list[str] = []
    before = served.runner.before_step
    served.runner.before_step = lambda batch: seen.append(served.runner.text(batch.rows[0].seq.token_ids))
    try:
        served.stream("no talk", **TOOLS)
        assert INTERLEAVED_NOTE in seen[0]
        seen.clear()
        served.stream("no talk", **(TOOLS | {"tool_mode": "inline"}))
        assert INTERLEAVED_NOTE not in seen[0]
    finally:
        served.runner.before_step = before


def test_a_client_that_leaves_stops_the_tool(served: Serving) -> None:
    served.tools.shut()
    with served.http.stream("POST", "/v1/chat/completions", json=_body()) as response:
        for chunk in response.iter_bytes():
            if b"running" in chunk:
                break
    wait_for(lambda: served.server.gateway.services.engine.num_open == 0)
    wait_for(lambda: served.tools.num_held == 0)


def _body() -> dict[str, object]:
    return {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "[script talk]"}],
        "temperature": 0,
        "stream": True,
        **TOOLS,
    }
