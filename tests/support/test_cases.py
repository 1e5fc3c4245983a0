"""Owns the tests of the case reader: cuts lose nothing, and a wrong result does not match."""

import json
from typing import Any

import pytest

from tests.support.cases import (
    Case,
    assert_dispatched,
    assert_matches,
    by_char,
    every_cutting,
    every_two_piece_cut,
    fixed,
    load_cases,
    required,
    seeded_random,
    whole,
)
from tests.support.wire_calls import Call

BY_ID = {case.id: case for case in load_cases()}


def case(content: str | None = "a  b", calls: tuple[Any, ...] = (), finish: str = "stop", **fields: Any) -> Case:
    expected = {"content": content, "tool_calls": list(calls), "finish_reason": finish}
    expected |= fields.pop("expected", {})
    return Case({"id": "x", "title": "t", "model_output": "", "expected": expected} | fields)


def right_answer(case: Case) -> tuple[Any, ...]:
    expected, calls = case.expected, []
    for number, call in enumerate(expected["tool_calls"]):
        is_whole = call.get("complete", True)
        text = json.dumps(call["arguments"]) if is_whole else call["arguments_text"]
        calls.append(Call(expected.get("ids", [None] * 9)[number], call["name"], text))
    return expected["content"], calls, expected["finish_reason"], expected.get("reasoning_content")


def test_all_cases_are_read() -> None:
    assert len(BY_ID) == 71
    assert {case.dialect for case in load_cases(dialects=["hermes", "plain"])} == {"hermes", "plain"}


def test_tools_are_the_case_s_own_where_it_has_some() -> None:
    assert len(BY_ID["c001"].tools) == 8
    assert len(BY_ID["c022"].tools) == 3
    assert BY_ID["c053"].tools == []


def test_bytes() -> None:
    assert b"".join(BY_ID["c053"].byte_chunks or []).decode() == BY_ID["c053"].model_output


@pytest.mark.parametrize("case", BY_ID.values(), ids=list(BY_ID))
def test_every_cutting_keeps_the_text(case: Case) -> None:
    seen = set()
    for label, pieces in every_cutting(case):
        assert "".join(pieces) == case.model_output, label
        assert all(pieces), label
        seen.add(label.split()[0])
    assert seen >= {"whole", "char", "fixed", "two", "random"}


@pytest.mark.parametrize("case", BY_ID.values(), ids=list(BY_ID))
def test_expected_answer_matches(case: Case) -> None:
    assert_matches(case, *right_answer(case))


@pytest.mark.parametrize("case", BY_ID.values(), ids=list(BY_ID))
def test_silence_matches_no_case(case: Case) -> None:
    with pytest.raises(AssertionError):
        assert_matches(case, None, [], "stop")


def test_cuts() -> None:
    assert whole("abc") == ["abc"]
    assert by_char("aé😀") == ["a", "é", "😀"]
    assert fixed("abcde", 2) == ["ab", "cd", "e"]
    assert list(every_two_piece_cut("abc")) == [["a", "bc"], ["ab", "c"]]
    assert list(seeded_random("abcdef", 5)) == list(seeded_random("abcdef", 5))
    assert list(seeded_random("a", 5)) == []


def test_required_cuttings() -> None:
    assert [label for label, _ in required(BY_ID["c017"])] == ["required 0"]
    assert [label for label, _ in required(BY_ID["c085"])] == ["required fixed-13", "required whole"]
    with pytest.raises(ValueError, match="unknown chunking"):
        list(required(case(chunking=["fixed 13"])))


def test_content_match() -> None:
    assert_matches(case(), " a b\n", [], "stop")
    for content in (" a  b", "a b"):
        with pytest.raises(AssertionError, match="content"):
            assert_matches(case(content_match="exact"), content, [], "stop")
    assert_matches(case("x\ufffd", content_match="exact"), "x\ufffd\ufffd\ufffd", [], "stop")


def test_reasoning_counts() -> None:
    with pytest.raises(AssertionError, match="reasoning"):
        assert_matches(case(), "a b", [], "stop", "hm")


def test_finish_reason_accept() -> None:
    either = case(expected={"finish_reason_accept": ["stop", "length"]})
    assert_matches(either, "a b", [], "length")
    with pytest.raises(AssertionError, match="finish_reason"):
        assert_matches(either, "a b", [], "tool_calls")


@pytest.mark.parametrize("arguments", ['{"x": 1.0}', '{"x": true}', '{"x": "1"}', "{}", '{"x": 1, "y": 2}'])
def test_arguments_differ(arguments: str) -> None:
    one = case(None, ({"name": "f", "arguments": {"x": 1}},), "tool_calls")
    assert_matches(one, None, [Call(None, "f", '{ "x":1 }')], "tool_calls")
    with pytest.raises(AssertionError, match="arguments"):
        assert_matches(one, None, [Call(None, "f", arguments)], "tool_calls")


def test_other_calls_do_not_match() -> None:
    one, right = case(None, ({"name": "f", "arguments": {}},), "tool_calls"), Call(None, "f", "{}")
    for calls in ([], [right, right]):
        with pytest.raises(AssertionError, match="calls"):
            assert_matches(one, None, calls, "tool_calls")
    with pytest.raises(AssertionError, match="name"):
        assert_matches(one, None, [right._replace(name="g")], "tool_calls")


def test_ids() -> None:
    one = case(None, ({"name": "f", "arguments": {}},), "tool_calls", assert_id_regex="^[a-z]{3}$")
    assert_matches(one, None, [Call("abc", "f", "{}")], "tool_calls")
    with pytest.raises(AssertionError, match="ids"):
        assert_matches(one, None, [Call("", "f", "{}")], "tool_calls")
    kept = BY_ID["c084"]
    calls = [call._replace(id="call_0") for call in right_answer(kept)[1]]
    with pytest.raises(AssertionError, match="ids"):
        assert_matches(kept, "I will look.", calls, "tool_calls")


def test_lossless_or_call() -> None:
    lenient, recovered = BY_ID["c016"], Call("a", "room_temp", '{"room": "lab"}')
    assert_matches(lenient, None, [recovered], "tool_calls")
    for calls in ([recovered._replace(arguments_text="{}")], [recovered, recovered]):
        with pytest.raises(AssertionError):
            assert_matches(lenient, None, calls, "tool_calls")


def test_lossless_or_error_call() -> None:
    lenient, broken = BY_ID["c015"], [Call("a", "room_temp", '{"room": ')]
    assert_matches(lenient, "Ok. ", broken, "tool_calls", errored=True)
    with pytest.raises(AssertionError, match="without a visible error"):
        assert_matches(lenient, "Ok. ", broken, "tool_calls")
    with pytest.raises(AssertionError, match="finish_reason"):
        assert_matches(lenient, "Ok. ", broken, "length", errored=True)


def test_dispatched() -> None:
    shell = ("run_shell", {"cmd": "ls"})
    assert_dispatched(BY_ID["c025"], [shell])
    for wrong in ([shell, shell], [("run_shell", {"cmd": "rm"})]):
        with pytest.raises(AssertionError, match="must not run"):
            assert_dispatched(BY_ID["c025"], wrong)
    assert_dispatched(BY_ID["c033"], [])
    with pytest.raises(AssertionError, match="must not run"):
        assert_dispatched(BY_ID["c033"], [("run_shell", {})])
