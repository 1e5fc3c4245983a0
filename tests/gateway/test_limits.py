"""What is bounded: the queue, a request's time, a stream's silence."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import (
    COMPLETE,
    HELLO,
    Listener,
    Serving,
    chat_body,
    completion_body,
    serving,
    wait_for,
)
from tests.support.wire import check_chat_stream, check_completion_stream


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer, max_num_seqs=2, max_waiting=2, keep_alive_s=0) as served:
        yield served


@pytest.fixture(scope="module")
def hasty(tokenizer: Tokenizer) -> Iterator[Serving]:
    """A server with a short deadline."""
    with serving(tokenizer, request_timeout_s=0.4, keep_alive_s=0) as served:
        yield served


@pytest.fixture(scope="module")
def chatty(tokenizer: Tokenizer) -> Iterator[Serving]:
    """A server with quick keep-alives."""
    with serving(tokenizer, keep_alive_s=0.05) as served:
        yield served


@pytest.fixture(autouse=True)
def _gates_are_open_again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("served", "hasty", "chatty"):
        if name in request.fixturenames:
            served: Serving = request.getfixturevalue(name)
            served.model.open()
            served.tools.open()
            wait_for(served.is_at_rest)


# --- the queue ---


def assert_is_full(response: Any) -> None:
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    error = response.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert "4 requests are open; the limit is 4" in error["message"]


def test_past_its_bound_the_queue_refuses_and_then_takes_again(served: Serving) -> None:
    served.model.shut()
    listeners = [served.listen() for _ in range(4)]
    wait_for(lambda: served.num_open == 4)
    for body in (chat_body(), chat_body(stream=True)):
        assert_is_full(served.post("/v1/chat/completions", body))
    for body in (completion_body(), completion_body(stream=True)):
        assert_is_full(served.post(COMPLETE, body))
    assert served.http.get("/health").status_code == 200, "a full queue is no illness"
    served.model.open()
    for listener in listeners:
        assert check_chat_stream(listener.join()).content == HELLO
    assert served.chat().status_code == 200


def test_a_request_of_several_choices_is_taken_whole_or_not_at_all(served: Serving) -> None:
    served.model.shut()
    listener = served.listen(n=3)
    wait_for(lambda: served.num_open == 3)
    refused = served.chat(n=2)
    assert refused.status_code == 429
    assert served.num_open == 3, "a part of the refused request was kept"
    served.model.open()
    transcript = check_chat_stream(listener.join(), n=3)
    assert [choice.content for choice in transcript.choices] == [HELLO] * 3


def test_a_refused_request_counts_in_no_metric(served: Serving) -> None:
    served.model.shut()
    listener = served.listen(n=4)
    wait_for(lambda: served.num_open == 4)
    before = served.metric("request_params_n_count")
    served.chat()
    assert served.metric("request_params_n_count") == before
    served.model.open()
    listener.join()


# --- the deadline ---


def test_a_stream_past_its_deadline_ends_with_an_error_object(hasty: Serving) -> None:
    listener = hasty.listen("long")
    listener.wait_for(b"word")
    hasty.model.shut()
    transcript = check_chat_stream(listener.join())
    assert transcript.error is not None
    assert transcript.error["code"] == "deadline_exceeded"
    assert "0.4 s" in transcript.error["message"]
    assert hasty.num_open == 0


def test_a_completion_stream_past_its_deadline_ends_the_same(hasty: Serving) -> None:
    listener = Listener(hasty.http, COMPLETE, completion_body("long", stream=True))
    listener.wait_for(b"word")
    hasty.model.shut()
    transcript = check_completion_stream(listener.join())
    assert transcript.error is not None
    assert transcript.error["code"] == "deadline_exceeded"


@pytest.mark.parametrize("fields", [{}, {"n": 3}], ids=["one choice", "three"])
def test_a_whole_answer_past_its_deadline_is_a_504(hasty: Serving, fields: dict[str, Any]) -> None:
    hasty.model.shut()
    response = hasty.chat("long", **fields)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert hasty.num_open == 0


def test_the_deadline_covers_a_tool_that_never_returns(hasty: Serving) -> None:
    hasty.tools.shut()
    response = hasty.chat("server", server_tools="all")
    assert response.status_code == 504
    wait_for(lambda: hasty.tools.num_held == 0)


def test_a_request_within_its_deadline_is_not_touched(hasty: Serving) -> None:
    assert hasty.stream().content == HELLO


# --- keep-alive ---


def test_a_silent_stream_gets_comments(chatty: Serving) -> None:
    chatty.step_s = 0.01
    listener = chatty.listen("long", max_tokens=50)
    listener.wait_for(b"word")
    chatty.model.shut()
    chatty.step_s = 0.0
    listener.wait_for(b": ping\n\n: ping\n\n")
    chatty.model.open()
    transcript = check_chat_stream(listener.join(), allow_comments=True)
    assert transcript.finish_reason == "length"


def test_a_stream_that_waits_for_its_first_token_gets_comments_and_no_chunk(chatty: Serving) -> None:
    chatty.model.shut()
    listener = chatty.listen()
    listener.wait_for(b": ping\n\n")
    assert listener.status == 200
    assert b"data:" not in listener.raw
    chatty.model.open()
    assert check_chat_stream(listener.join(), allow_comments=True).content == HELLO


def test_comments_can_be_switched_off(served: Serving, chatty: Serving) -> None:
    served.model.shut()
    chatty.model.shut()
    silent, told = served.listen(), chatty.listen()
    told.wait_for(b": ping\n\n: ping\n\n: ping\n\n")
    assert silent.raw == b""
    served.model.open()
    chatty.model.open()
    assert b": ping" not in silent.join()
    told.join()


def test_an_error_before_the_first_token_has_its_own_status(served: Serving) -> None:
    served.model.shut()
    listener = served.listen()
    wait_for(lambda: served.num_open == 1)
    served.server.loop.call_soon_threadsafe(served.server.gateway.services.engine.end_all, "no more")
    raw = listener.join()
    assert listener.status == 503
    assert json.loads(raw)["error"]["message"] == "no more"


# --- a request's tools ---


def test_the_tools_of_a_request_may_not_be_too_large_together(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midstream.gateway.tool_plans.MAX_CHARACTERS", 2000)
    tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(20)]
    with serving(tokenizer) as served:
        assert served.chat("hello", tools=tools[:2]).status_code == 200
        response = served.chat("hello", tools=tools)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == "tools"
        assert "give fewer tools, or shorter schemas" in error["message"]
