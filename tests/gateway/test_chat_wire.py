"""Chat completions on the wire: what a strict client sees of streams and of whole answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from midstream.cli.compose import new_id
from midstream.gateway.tool_plans import ToolPlans
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.dialects.objects import HERMES
from tests.gateway.serving import (
    ALARM,
    HELLO,
    LONG,
    MODEL,
    RESULT,
    STATUS_CALL,
    WEATHER,
    Serving,
    serving,
    wait_for,
)
from tests.support.wire import Transcript, check_chat_stream

USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer) as served:
        yield served


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(served: Serving) -> Iterator[None]:
    yield
    served.model.open()
    served.tools.open()
    wait_for(served.is_at_rest)


def calls(transcript: Transcript) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments_text)) for call in transcript.tool_calls]


def states(transcript: Transcript) -> list[str]:
    return [data["call"]["state"] for _, data in transcript.events]


def message_of(served: Serving, script: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """The whole answer's message and its finish reason."""
    [choice] = served.chat(script, **fields).json()["choices"]
    return choice["message"], choice["finish_reason"]


# --- plain ---


@pytest.mark.parametrize(("script", "text"), [("hello", HELLO), ("emoji", "Grüße 👋🏽 aus 東京."), ("long", LONG)])
def test_a_plain_stream(served: Serving, script: str, text: str) -> None:
    transcript = served.stream(script)
    assert transcript.content == text
    assert transcript.finish_reason == "stop"
    assert transcript.usage is None
    assert transcript.chunks[0]["model"] == MODEL


def test_a_stream_has_the_headers_of_one(served: Serving) -> None:
    response = served.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"


def test_usage_is_sent_last_when_it_is_asked_for(served: Serving, tokenizer: Tokenizer) -> None:
    transcript = served.stream(**USAGE)
    usage = transcript.usage
    assert usage is not None
    num_generated = len(encode_as_scripted(served, HELLO)) + 1
    assert usage["completion_tokens"] == num_generated, "the end of the turn is a token, too"
    assert usage["total_tokens"] == usage["prompt_tokens"] + num_generated
    assert usage["injected_tokens"] == 0


def encode_as_scripted(served: Serving, text: str) -> list[int]:
    rest, ids = text.encode(), []
    while rest:
        token_id = served.runner._longest_token(rest)
        ids.append(token_id)
        rest = rest[len(served.runner._token_bytes[token_id]) :]
    return ids


def test_a_whole_answer_tells_the_same_as_its_stream(served: Serving) -> None:
    body = served.chat().json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == MODEL
    [choice] = body["choices"]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": HELLO}
    assert choice["finish_reason"] == "stop"
    streamed = served.stream(**USAGE)
    assert streamed.usage is not None
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert body["usage"][name] == streamed.usage[name]


def test_several_choices_come_side_by_side(served: Serving) -> None:
    transcript = served.stream(n=3, **USAGE)
    assert [choice.content for choice in transcript.choices] == [HELLO] * 3
    assert [choice.finish_reason for choice in transcript.choices] == ["stop"] * 3
    assert transcript.usage is not None
    one = served.stream(**USAGE).usage
    assert one is not None
    assert transcript.usage["prompt_tokens"] == one["prompt_tokens"], "a prompt counts once"
    assert transcript.usage["completion_tokens"] == 3 * one["completion_tokens"]
    choices = served.chat(n=2).json()["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in choices] == [(0, HELLO), (1, HELLO)]


def test_the_first_chunk_waits_for_the_first_token(served: Serving) -> None:
    served.model.shut()
    listener = served.listen()
    wait_for(lambda: served.model.num_held)
    assert listener.status is None, "something was sent before the first token"
    served.model.open()
    first = listener.join().partition(b"\n\n")[0]
    assert b"Hello" in first


def test_max_tokens_ends_it_with_length(served: Serving) -> None:
    limits: list[dict[str, Any]] = [{"max_tokens": 5}, {"max_completion_tokens": 5}]
    for limit in limits:
        transcript = served.stream("long", **limit, **USAGE)
        assert transcript.finish_reason == "length"
        assert transcript.usage is not None
        assert transcript.usage["completion_tokens"] == 5


def test_a_stop_string_ends_it_and_is_not_shown(served: Serving) -> None:
    transcript = served.stream(stop=["scripted"])
    assert transcript.content == "Hello there, I am a "
    assert transcript.finish_reason == "stop"
    [choice] = served.chat(stop="scripted").json()["choices"]
    assert choice["message"]["content"] == "Hello there, I am a "
    assert choice["stop_reason"] == "scripted"
    shown = served.stream(stop=["scripted"], include_stop_str_in_output=True)
    assert shown.content == "Hello there, I am a scripted"


# --- client tools ---


def test_a_client_call(served: Serving) -> None:
    transcript = served.stream("client", tools=[WEATHER])
    assert calls(transcript) == [("get_weather", {"city": "Oslo"})]
    assert transcript.content == ""
    assert transcript.finish_reason == "tool_calls"
    assert transcript.events == []


def test_a_client_call_comes_piece_by_piece(served: Serving) -> None:
    transcript = served.stream("client", tools=[WEATHER])
    deltas = [chunk["choices"][0]["delta"] for chunk in transcript.chunks]
    pieces = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta]
    assert len([piece for piece in pieces if piece]) > 1


def test_text_before_a_client_call(served: Serving) -> None:
    transcript = served.stream("client text", tools=[WEATHER])
    assert transcript.content.strip() == "One moment."
    assert calls(transcript) == [("get_weather", {"city": "Oslo"})]
    assert transcript.finish_reason == "tool_calls"


def test_several_client_calls_are_numbered_and_never_interleave(served: Serving) -> None:
    transcript = served.stream("client two", tools=[WEATHER, ALARM])
    assert calls(transcript) == [("get_weather", {"city": "Oslo"}), ("set_alarm", {"at": "07:00"})]
    assert transcript.finish_reason == "tool_calls"


def test_client_calls_in_a_whole_answer(served: Serving) -> None:
    message, reason = message_of(served, "client two", tools=[WEATHER, ALARM])
    assert reason == "tool_calls"
    assert message["content"] is None
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather", "set_alarm"]
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [
        {"city": "Oslo"},
        {"at": "07:00"},
    ]
    assert {call["type"] for call in message["tool_calls"]} == {"function"}
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_one_call_at_a_time_where_parallel_calls_are_off(served: Serving) -> None:
    transcript = served.stream("client two", tools=[WEATHER, ALARM], parallel_tool_calls=False)
    assert calls(transcript) == [("get_weather", {"city": "Oslo"})]
    assert transcript.finish_reason == "tool_calls"


def test_markup_without_tools_is_text(served: Serving) -> None:
    assert served.stream("client").content == served.chat("client").json()["choices"][0]["message"]["content"]
    assert "<tool_call>" in served.stream("client").content


def test_tool_choice_none_makes_no_calls(served: Serving) -> None:
    transcript = served.stream("client", tools=[WEATHER], tool_choice="none")
    assert transcript.tool_calls == []
    assert transcript.finish_reason == "stop"


def test_required_ends_tool_calls_and_named_ends_stop(served: Serving) -> None:
    required = served.stream("client", tools=[WEATHER, ALARM], tool_choice="required")
    assert calls(required) == [("get_weather", {"city": "Oslo"})]
    assert required.finish_reason == "tool_calls"
    name: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}
    named = served.stream("client", tools=[WEATHER, ALARM], tool_choice=name)
    assert calls(named) == [("get_weather", {"city": "Oslo"})]
    assert named.finish_reason == "stop"
    message, reason = message_of(served, "client", tools=[WEATHER, ALARM], tool_choice=name)
    assert reason == "stop"
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"


def test_a_list_of_named_choices_makes_those_calls_in_that_order(served: Serving) -> None:
    names = ["set_alarm", "get_weather", "set_alarm"]
    choice: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in names]
    transcript = served.stream("listed", tools=[WEATHER, ALARM], tool_choice=choice)
    assert calls(transcript) == [
        ("set_alarm", {"at": "07:00"}),
        ("get_weather", {"city": "Oslo"}),
        ("set_alarm", {"at": "08:00"}),
    ]
    assert transcript.finish_reason == "tool_calls"


def test_a_call_that_is_cut_ends_length(served: Serving) -> None:
    whole = served.stream("client", tools=[WEATHER], **USAGE)
    assert whole.usage is not None
    num_tokens = whole.usage["completion_tokens"]
    seen_cut = False
    for limit in range(1, num_tokens - 2):
        transcript = served.stream("client", tools=[WEATHER], max_tokens=limit)
        assert transcript.finish_reason == "length"
        seen_cut = seen_cut or bool(transcript.tool_calls)
    assert seen_cut, "no limit cut a call that had begun"


def test_a_stop_string_inside_a_second_call_leaves_nothing_to_run(served: Serving) -> None:
    transcript = served.stream("client two", tools=[WEATHER, ALARM], stop=["07:"])
    assert [call.name for call in transcript.tool_calls] == ["get_weather", "set_alarm"]
    assert transcript.finish_reason == "stop"


# --- server tools ---


def test_server_calls_are_events_and_the_stream_ends_stop(served: Serving) -> None:
    transcript = served.stream("server", server_tools=["flight_status"], **USAGE)
    assert transcript.content == "Let me see. It had 54 departures."
    assert transcript.tool_calls == []
    assert transcript.finish_reason == "stop"
    assert states(transcript) == ["routed", "running", "done", "injected"]
    done = transcript.events[2][1]
    assert done["done"] is True
    assert done["call"]["arguments"] == {"airport": "PVG", "date": "2026-12-02"}
    assert done["call"]["result"] == RESULT
    assert len({data["call"]["id"] for _, data in transcript.events}) == 1
    assert transcript.usage is not None
    assert transcript.usage["injected_tokens"] > 0


def test_several_choices_with_server_tools(served: Serving) -> None:
    transcript = served.stream("server", server_tools="all", n=2)
    assert [choice.content for choice in transcript.choices] == ["Let me see. It had 54 departures."] * 2
    assert sorted(states(transcript)) == sorted(["routed", "running", "done", "injected"] * 2)


def test_a_server_call_that_is_cut_is_never_run(served: Serving) -> None:
    num_before = len(served.transport.ran)
    for limit in range(10, 40):
        transcript = served.stream("server", server_tools="all", max_tokens=limit)
        assert transcript.finish_reason == "length"
        if states(transcript):
            break
    assert states(transcript) == ["routed", "abandoned"]
    assert len(served.transport.ran) == num_before


def test_mixed_calls_end_tool_calls_once_the_servers_are_done(served: Serving) -> None:
    served.tools.shut()
    num_before = len(served.transport.ran)
    listener = served.listen("mixed", tools=[WEATHER], server_tools=["flight_status"])
    wait_for(lambda: served.server.engine.scheduler.parked)
    assert len(served.transport.ran) == num_before + 1
    listener.wait_for(b"Os")
    assert b'"finish_reason":"' not in listener.raw, "it ended before the server's call was done"
    served.tools.open()
    transcript = check_chat_stream(listener.join())
    assert calls(transcript) == [("get_weather", {"city": "Oslo"})]
    assert states(transcript) == ["routed", "running", "done"]
    assert transcript.finish_reason == "tool_calls"


def test_mixed_calls_in_a_whole_answer(served: Serving) -> None:
    message, reason = message_of(served, "mixed", tools=[WEATHER], server_tools=["flight_status"])
    assert reason == "tool_calls"
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]
    [done] = message["server_calls"]
    assert (done["name"], done["state"], done["result"]) == ("flight_status", "done", RESULT)


def test_call_markup_of_an_enabled_tool_is_never_content(served: Serving) -> None:
    transcript = served.stream("server", server_tools="all")
    assert STATUS_CALL not in transcript.content
    assert "<tool_call>" not in transcript.content


# --- reasoning ---


@pytest.mark.parametrize("tools", [[], [WEATHER]], ids=["without tools", "with tools"])
def test_reasoning_is_told_apart_from_the_answer(
    served: Serving, monkeypatch: pytest.MonkeyPatch, tools: list[Any]
) -> None:
    monkeypatch.setattr(served.server.gateway, "tool_plans", ToolPlans(HERMES, {}, ("<think>", "</think>"), new_id))
    transcript = served.stream("thinking", tools=tools)
    assert transcript.reasoning == "It asks for a greeting."
    assert transcript.content == "Hello."
    message, _ = message_of(served, "thinking", tools=tools)
    assert message["reasoning"] == message["reasoning_content"] == "It asks for a greeting."
    assert message["content"] == "Hello."


def test_a_model_without_reasoning_markers_may_write_them(served: Serving) -> None:
    assert served.stream("thinking").content == "<think>It asks for a greeting.</think>Hello."
