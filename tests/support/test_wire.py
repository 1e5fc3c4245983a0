"""Owns the tests of the stream checker: every rule has a stream that breaks it. Needs no server."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.wire import Transcript, check_chat_stream, check_completion_stream
from tests.support.wire_calls import Call

NAMED = {"type": "function", "function": {"name": "f"}}
USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
ROLE = {"role": "assistant"}


def chunk(delta: Any = None, *, index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    } | fields


def text(content: str, **fields: Any) -> dict[str, Any]:
    return chunk({"content": content}, **fields)


def opened(index: int = 0, id_: Any = "a", arguments: Any = "", **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"index": index, "id": id_, "type": "function", "function": function} | more


def more(index: int, arguments: Any) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments}}


def calls(*entries: Any, **fields: Any) -> dict[str, Any]:
    return chunk({"tool_calls": list(entries)}, **fields)


def event(**data: Any) -> dict[str, Any]:
    body = {"type": "status", "data": {"description": "d", "done": False} | data}
    return chunk(choices=[], event=body)


def sse(*chunks: Any, done: bool = True) -> bytes:
    payloads = [c if isinstance(c, str) else "data: " + json.dumps(c) for c in chunks]
    return "".join(p + "\n\n" for p in [*payloads, *(["data: [DONE]"] if done else [])]).encode()


HELLO = [chunk({**ROLE, "content": "Hel"}), text("lo")]
STOP = chunk(finish="stop")
TOOL_CALLS = chunk(finish="tool_calls")
FIRST_CALL = chunk({**ROLE, "tool_calls": [opened(arguments="{")]})
CALL = [FIRST_CALL, calls(more(0, '"x": 1}'))]
ERROR = {"error": {"message": "the engine died", "type": "engine_error", "code": "engine_died"}}


# --- streams that are right ---


def test_text() -> None:
    seen = check_chat_stream(sse(*HELLO, STOP))
    assert (seen.content, seen.finish_reason, seen.tool_calls) == ("Hello", "stop", [])
    assert seen.chunks == [*HELLO, STOP]


def test_calls_text_and_reasoning() -> None:
    thought = chunk({**ROLE, "reasoning": "hm", "reasoning_content": "hm"})
    second = calls(opened(1, "b", '{"y": 2}'))
    later = text(" after", finish="tool_calls")
    seen = check_chat_stream(sse(thought, calls(opened()), calls(more(0, "{}")), second, later))
    assert (seen.reasoning, seen.content) == ("hm", " after")
    assert seen.tool_calls == [Call("a", "f", "{}"), Call("b", "f", '{"y": 2}')]


def test_events_come_before_the_role_and_carry_their_number() -> None:
    started = event(call={"id": "s", "name": "g", "state": "routed"})
    ended = event(done=True, call={"id": "s", "name": "g", "state": "done", "result": "1"})
    seen = check_chat_stream(sse(started, *HELLO, ended, STOP))
    assert [(number, data["call"]["state"]) for number, data in seen.events] == [(0, "routed"), (3, "done")]


def test_usage() -> None:
    bare = {"choices": [], "usage": USAGE}
    chunks = [c | {"usage": None} for c in [*HELLO, STOP]]
    raw = sse(*chunks[:1], event(), *chunks[1:], chunk() | bare)
    assert check_chat_stream(raw, include_usage=True).usage == USAGE


def test_two_choices() -> None:
    other = [chunk({**ROLE, "content": "Hi"}, index=1), chunk(index=1, finish="length")]
    seen = check_chat_stream(sse(HELLO[0], other[0], HELLO[1], other[1], STOP), n=2)
    assert [(c.content, c.finish_reason) for c in seen.choices] == [("Hello", "stop"), ("Hi", "length")]


def test_error_object_stands_for_the_finish_reason() -> None:
    seen = check_chat_stream(sse(*CALL[:1], ERROR))
    assert seen.error == ERROR["error"]
    assert seen.finish_reason is None


def test_cut_in_a_call() -> None:
    for finish in ("length", "stop"):
        assert check_chat_stream(sse(*CALL[:1], chunk(finish=finish))).tool_calls == [Call("a", "f", "{")]


def test_failed_call_may_be_wrong_when_an_event_says_so() -> None:
    broken = chunk({**ROLE, "tool_calls": [opened(arguments='{"x": }')]})
    failed = event(done=True, call={"id": "a", "name": "f", "state": "failed", "error": "no JSON"})
    for finish in ("stop", "tool_calls"):
        check_chat_stream(sse(broken, failed, chunk(finish=finish)))


def test_named_tool_choice_ends_stop() -> None:
    assert check_chat_stream(sse(*CALL, STOP), tool_choice=NAMED).finish_reason == "stop"


def test_stream_that_the_client_left() -> None:
    raw = sse(*HELLO, done=False)
    assert check_chat_stream(raw, expect_done=False).content == "Hello"
    assert check_chat_stream(raw[:-9], expect_done=False).content == "Hel"


def test_comment_where_it_is_allowed() -> None:
    assert check_chat_stream(sse(HELLO[0], ": ping", STOP), allow_comments=True).content == "Hel"


# --- streams that are wrong, a line each ---

NULL = [c | {"usage": None} for c in HELLO]
END = chunk(choices=[], usage=USAGE)
without_finish = chunk({**ROLE, "content": "x"})
del without_finish["choices"][0]["finish_reason"]

WRONG: list[tuple[str, bytes, dict[str, Any]]] = [
    ("I1 at chunk 0", sse(text("x"), STOP), {}),
    ("I1 at chunk 1", sse(HELLO[0], HELLO[0], STOP), {}),
    ("I1", sse(chunk({"role": "user", "content": "x"}), STOP), {}),
    ("I1", sse(HELLO[0], text("x", index=1), STOP, chunk(index=1, finish="stop")), {"n": 2}),
    ("I2", sse(*HELLO, calls(opened(id_="")), TOOL_CALLS), {}),
    ("I2", sse(*HELLO, calls(opened(id_=None)), TOOL_CALLS), {}),
    ("I2", sse(*HELLO, calls({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}})), {}),
    ("I2", sse(*HELLO, calls(opened(type="tool"))), {}),
    ("I2", sse(*HELLO, calls(opened(function={"name": "f"}))), {}),
    ("I2", sse(*HELLO, calls(opened(function={"name": "", "arguments": ""}))), {}),
    ("I2", sse(*HELLO, calls(opened(arguments={"x": 1}))), {}),
    ("I2", sse(*HELLO, calls(more(0, "{}"))), {}),
    ("I3", sse(*CALL, calls(opened(1, "a", "{}")), TOOL_CALLS), {}),
    ("I3", sse(*CALL, chunk({**ROLE, "tool_calls": [opened()]}, index=1)), {"n": 2}),
    ("I4", sse(*HELLO, calls(opened(1))), {}),
    ("I4", sse(*HELLO, calls(opened(-1))), {}),
    ("I4", sse(*HELLO, calls(opened(False))), {}),
    ("I4", sse(*CALL, calls(opened(2, "b"))), {}),
    ("I4", sse(*HELLO, calls({"id": "a", "type": "function", "function": {}})), {}),
    ("I5 at chunk 2", sse(*CALL, calls(opened(0, "b", "{}")), TOOL_CALLS), {}),
    ("I6", sse(*HELLO, calls(opened(), more(0, "{}")), TOOL_CALLS), {}),
    ("I7", sse(FIRST_CALL, calls(more(0, "}") | {"id": "a"})), {}),
    ("I7", sse(FIRST_CALL, calls(more(0, "}") | {"id": None})), {}),
    ("I7", sse(FIRST_CALL, calls(more(0, "}") | {"type": "function"})), {}),
    ("I7", sse(FIRST_CALL, calls({"index": 0, "function": {"name": "f", "arguments": "}"}})), {}),
    ("I7", sse(FIRST_CALL, calls({"index": 0, "function": {"name": None, "arguments": "}"}})), {}),
    ("I7", sse(FIRST_CALL, calls(more(0, None))), {}),
    ("I7", sse(chunk({**ROLE, "content": None}), STOP), {}),
    ("I8", sse(*CALL, calls(more(0, '{"x": 1}')), TOOL_CALLS), {}),
    ("I8", sse(*CALL[:1], TOOL_CALLS), {}),
    ("I8", sse(*CALL[:1], calls(opened(1, "b", "{}")), chunk(finish="length")), {}),
    ("I8", sse(FIRST_CALL, calls(more(0, "x: }")), STOP), {}),
    ("I8", sse(*HELLO, calls(opened(arguments="[1]")), TOOL_CALLS), {}),
    ("I8", sse(*HELLO, calls(opened()), TOOL_CALLS), {}),
    ("I9", sse(*HELLO, calls(), STOP), {}),
    ("I9", sse(FIRST_CALL, calls(more(0, "")), calls(more(0, "}")), TOOL_CALLS), {}),
    ("I10", sse(HELLO[0], text("x", id="d"), STOP), {}),
    ("I10", sse(HELLO[0], text("x", created=2), STOP), {}),
    ("I10", sse(HELLO[0], text("x", model="n"), STOP), {}),
    ("I10", sse(HELLO[0], event() | {"id": "d"}, STOP), {}),
    ("I11", sse(*HELLO, STOP, STOP), {}),
    ("I11", sse(*HELLO, STOP, text("x")), {}),
    ("I11", sse(*HELLO, chunk(finish="eos")), {}),
    ("I12", sse(*HELLO, TOOL_CALLS), {}),
    ("I12", sse(*CALL, STOP), {}),
    ("I12", sse(*CALL, STOP), {"tool_choice": "required"}),
    ("I12", sse(*CALL, TOOL_CALLS), {"tool_choice": NAMED}),
    ("I12", sse(*CALL, TOOL_CALLS), {"tool_choice": "none"}),
    ("I13", sse(*HELLO, STOP), {"include_usage": True}),
    ("I13", sse(*(c | {"usage": None} for c in [*HELLO, STOP])), {"include_usage": True}),
    ("I13", sse(HELLO[0] | {"usage": None}, STOP | {"usage": USAGE}), {"include_usage": True}),
    ("I13 at chunk 2", sse(NULL[0], END, NULL[1], STOP | {"usage": None}), {"include_usage": True}),
    ("I13 at chunk 1", sse(NULL[0], *HELLO[1:], STOP | {"usage": None}, END), {"include_usage": True}),
    ("I13", sse(chunk(choices=[], usage={"prompt_tokens": 1})), {"include_usage": True}),
    ("I13", sse(chunk(choices=[], usage=USAGE | {"total_tokens": 6})), {"include_usage": True}),
    ("I14", sse(*HELLO, STOP, done=False), {}),
    ("I14", sse(*HELLO, STOP, "data: [DONE]"), {}),
    ("I14", sse(*HELLO, "data: [DONE]", STOP, done=False), {}),
    ("I14", sse(*HELLO, ERROR, done=False), {}),
    ("I14", sse(*HELLO, ERROR, STOP), {}),
    ("I15", sse(*HELLO, STOP, chunk(choices=[], usage=USAGE)), {}),
    ("I15", sse(HELLO[0] | {"usage": None}, STOP), {}),
    ("I16", sse(chunk({**ROLE, "content": "x"}, index=1), *HELLO), {"n": 2}),
    ("I16", sse(*HELLO, STOP), {"n": 2}),
    ("I16", sse(HELLO[0], chunk(ROLE, index=1), STOP), {}),
    ("I17 at chunk 2", sse(*HELLO, ": ping", STOP), {}),
    ("I18", sse(FIRST_CALL, calls(opened(1, "b", "{")), calls(more(0, "}")), calls(more(1, "}"))), {}),
    ("I20", sse(*HELLO), {}),
    ("I20", sse(), {}),
    ("I20", sse(*HELLO, {"error": "died"}), {}),
    ("I20", sse(*HELLO, {"error": {"message": "", "type": "t"}}), {}),
    ("I20", sse(*HELLO, {"error": {"message": "m"}}), {}),
    ("FRAME", sse(*HELLO, STOP)[:-1], {}),
    ("FRAME", sse(*HELLO, STOP).replace(b"\n\n", b"\r\n\r\n"), {}),
    ("FRAME", sse(*HELLO, STOP).replace(b"\n\n", b"\r\n\n"), {}),
    ("FRAME", sse("id: 1\ndata: {}"), {}),
    ("FRAME", sse("event: status\ndata: {}"), {}),
    ("FRAME", sse("data:{}"), {}),
    ("FRAME at chunk 1", sse(HELLO[0], done=False) + b"data: \xf0\x9f\n\n", {}),
    ("SHAPE", sse("data: {"), {}),
    ("SHAPE", sse("data: [1]"), {}),
    ("SHAPE", sse(HELLO[0] | {"created": float("nan")}), {}),
    ("SHAPE", sse(HELLO[0] | {"object": "chat.completion"}), {}),
    ("SHAPE", sse(HELLO[0] | {"id": ""}), {}),
    ("SHAPE", sse(HELLO[0] | {"created": 1.5}), {}),
    ("SHAPE", sse(HELLO[0] | {"choices": None}), {}),
    ("SHAPE", sse(HELLO[0] | {"choices": [1]}), {}),
    ("SHAPE", sse(HELLO[0] | {"choices": []}), {}),
    ("SHAPE", sse(without_finish), {}),
    ("SHAPE", sse(chunk() | {"choices": [{"index": 0, "delta": None, "finish_reason": None}]}), {}),
    ("SHAPE", sse(chunk() | {"choices": [{"index": 0, "delta": {}, "finish_reason": None, "x": 1}]}), {}),
    ("DELTA", sse(chunk({**ROLE, "content": ""}), STOP), {}),
    ("DELTA", sse(chunk({**ROLE, "content": 1}), STOP), {}),
    ("DELTA", sse(chunk({**ROLE, "function_call": {}}), STOP), {}),
    ("DELTA", sse(chunk({**ROLE, "reasoning": "hm"}), STOP), {}),
    ("EVENT", sse(HELLO[0] | {"event": event()["event"]}), {}),
    ("EVENT", sse(event() | {"event": event()["event"] | {"type": "other"}}), {}),
    ("EVENT", sse(event() | {"event": {"type": "status"}}), {}),
    ("EVENT", sse(event(done="no")), {}),
    ("EVENT", sse(event(extra=1)), {}),
    ("EVENT", sse(event(call={"id": "s", "name": "g"})), {}),
    ("EVENT", sse(event(call={"id": "", "name": "g", "state": "routed"})), {}),
    ("EVENT", sse(event(call={"id": "s", "name": "g", "state": "routed", "x": 1})), {}),
]


@pytest.mark.parametrize(("code", "raw", "options"), WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRONG)])
def test_fault_is_named(code: str, raw: bytes, options: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=rf"^{code}\b"):
        check_chat_stream(raw, **options)


def test_every_numbered_rule_has_a_stream_that_breaks_it() -> None:
    codes = {code.split()[0] for code, _, _ in WRONG}
    assert codes >= {f"I{number}" for number in range(1, 21)} - {"I19"}  # I19 is not in use


# --- text completions ---


def completion(piece: Any, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": piece, "finish_reason": finish, "logprobs": None}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]} | fields


def test_completion() -> None:
    seen = check_completion_stream(sse(completion("a"), completion("b", "length")))
    assert (seen.content, seen.finish_reason) == ("ab", "length")


@pytest.mark.parametrize(
    ("code", "chunks"),
    [
        ("SHAPE", [completion(None, "stop")]),
        ("SHAPE", [completion("a", "stop", object="chat.completion.chunk")]),
        ("SHAPE", [chunk(ROLE, object="text_completion")]),
        ("SHAPE", [completion("a"), event() | {"object": "text_completion"}]),
        ("I11", [completion("a", "stop"), completion("b")]),
        ("I20", [completion("a")]),
    ],
)
def test_completion_fault_is_named(code: str, chunks: list[Any]) -> None:
    with pytest.raises(AssertionError, match=rf"^{code}\b"):
        check_completion_stream(sse(*chunks))


@pytest.mark.parametrize("check", [check_chat_stream, check_completion_stream])
def test_nothing_at_all_is_a_fault(check: Callable[[bytes], Transcript]) -> None:
    with pytest.raises(AssertionError, match="I14"):
        check(b"")
