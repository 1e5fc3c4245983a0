"""The transcript store: which turns it knows again, whose they are, and that it never grows past its bound."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.gateway.transcripts import TranscriptStore

ANN, BOB = b"ann", b"bob"
USER = {"role": "user", "content": "Hi."}
ANSWER = {"role": "assistant", "content": "Hello."}
MORE = {"role": "user", "content": "More."}


@pytest.fixture
def store() -> TranscriptStore:
    return TranscriptStore(max_tokens=100)


def answer(content: Any = "Hello.", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def test_a_conversation_that_begins_with_a_known_turn_finds_its_tokens(store: TranscriptStore) -> None:
    store.put(ANN, None, [USER, ANSWER], [1, 2, 3])
    found = store.find(ANN, None, [USER, ANSWER, MORE])
    assert found is not None
    assert (found.num_messages, found.token_ids) == (2, [1, 2, 3])


def test_the_longest_known_beginning_wins(store: TranscriptStore) -> None:
    store.put(ANN, None, [USER, ANSWER], [1])
    store.put(ANN, None, [USER, ANSWER, MORE, ANSWER], [1, 2])
    found = store.find(ANN, None, [USER, ANSWER, MORE, ANSWER, MORE])
    assert found is not None
    assert (found.num_messages, found.token_ids) == (4, [1, 2])


@pytest.mark.parametrize(
    ("owner", "tools", "messages"),
    [
        pytest.param(BOB, None, [USER, ANSWER], id="another owner"),
        pytest.param(ANN, [{"name": "f"}], [USER, ANSWER], id="other tools"),
        pytest.param(ANN, None, [MORE, ANSWER], id="another question"),
        pytest.param(ANN, None, [USER, answer("Hello!")], id="another answer"),
        pytest.param(ANN, None, [MORE, USER, ANSWER], id="something before it"),
        pytest.param(ANN, None, [USER, {**ANSWER, "role": "user"}], id="another role"),
        pytest.param(ANN, None, [USER], id="no answer"),
        pytest.param(ANN, None, [], id="nothing"),
    ],
)
def test_any_difference_is_a_miss(store: TranscriptStore, owner: bytes, tools: Any, messages: list[Any]) -> None:
    store.put(ANN, None, [USER, ANSWER], [1, 2, 3])
    assert store.find(owner, tools, messages) is None


def test_an_owner_and_its_tools_cannot_be_mistaken_for_another_owner(store: TranscriptStore) -> None:
    store.put(b"a", "b", [ANSWER], [1])
    assert store.find(b'a"b"', "", [ANSWER]) is None
    assert store.find(b"", "ab", [ANSWER]) is None


def call(arguments: str, **fields: Any) -> dict[str, Any]:
    return {"function": {"name": "f", "arguments": arguments}, **fields}


@pytest.mark.parametrize(
    "sent_back",
    [
        pytest.param(answer(None, tool_calls=[call('{"b":2,"a":1}')]), id="null content"),
        pytest.param(answer("", tool_calls=[call('{ "b" : 2, "a" : 1 }')]), id="other spacing"),
        pytest.param(answer([], tool_calls=[call('{"a": 1, "b": 2}')]), id="no parts, other order"),
        pytest.param(answer("", tool_calls=[call('{"b":2,"a":1}', id="call_9", type="function", index=0)]), id="an id"),
        pytest.param(answer("", name="bot", refusal=None, tool_calls=[call('{"b":2,"a":1}')]), id="more fields"),
    ],
)
def test_calls_are_the_same_however_a_client_writes_them_back(
    store: TranscriptStore, sent_back: dict[str, Any]
) -> None:
    store.put(ANN, None, [USER, answer("", tool_calls=[call('{"b": 2, "a": 1}')])], [7])
    assert store.find(ANN, None, [USER, sent_back]) is not None


@pytest.mark.parametrize("arguments", ['{"b": 2, "a": 2}', '{"b": 2}', "{}", "", "not json", "[" * 100_000, "9" * 5000])
def test_other_arguments_are_another_turn(store: TranscriptStore, arguments: str) -> None:
    store.put(ANN, None, [USER, answer("", tool_calls=[call('{"b": 2, "a": 1}')])], [7])
    assert store.find(ANN, None, [USER, answer("", tool_calls=[call(arguments)])]) is None


def test_text_parts_are_their_text(store: TranscriptStore) -> None:
    store.put(ANN, None, [USER, ANSWER], [1])
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]
    assert store.find(ANN, None, [USER, answer(parts)]) is not None
    # The chat template will refuse it; the store only has to stand it.
    assert store.find(ANN, None, [USER, answer([{"type": "text", "text": 5}, "x", {"text": None}])]) is None


def test_the_turn_used_longest_ago_makes_room(store: TranscriptStore) -> None:
    turns = [[{"role": "user", "content": str(number)}, ANSWER] for number in range(4)]
    for turn in turns[:3]:
        store.put(ANN, None, turn, [0] * 30)
    assert store.find(ANN, None, turns[0]) is not None, "and now it has been used last"
    store.put(ANN, None, turns[3], [0] * 30)
    assert store.find(ANN, None, turns[1]) is None
    assert [store.find(ANN, None, turns[i]) is not None for i in (0, 2, 3)] == [True] * 3
    assert store.num_tokens == 90


def test_a_turn_that_is_larger_than_the_store_is_not_kept(store: TranscriptStore) -> None:
    store.put(ANN, None, [USER, ANSWER], [0] * 50)
    store.put(ANN, None, [MORE, ANSWER], [0] * 101)
    assert store.find(ANN, None, [MORE, ANSWER]) is None
    assert store.find(ANN, None, [USER, ANSWER]) is not None, "it did not drive the others out"
    nothing = TranscriptStore(max_tokens=0)
    nothing.put(ANN, None, [USER, ANSWER], [1])
    assert nothing.num_tokens == 0


def test_a_turn_that_is_put_again_counts_once(store: TranscriptStore) -> None:
    for num_tokens in (40, 60, 20):
        store.put(ANN, None, [USER, ANSWER], [0] * num_tokens)
        assert store.num_tokens == num_tokens


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=60))
def test_it_never_holds_more_than_its_bound(puts: list[tuple[int, int]]) -> None:
    store = TranscriptStore(max_tokens=100)
    for number, num_tokens in puts:
        turn = [{"role": "user", "content": str(number)}, ANSWER]
        store.put(ANN, None, turn, [number] * num_tokens)
        assert store.num_tokens <= 100
        found = store.find(ANN, None, turn)
        assert found is not None
        assert found.token_ids == [number] * num_tokens


def test_a_caller_may_change_what_it_found(store: TranscriptStore) -> None:
    store.put(ANN, None, [USER, ANSWER], [1, 2])
    for _ in range(2):
        found = store.find(ANN, None, [USER, ANSWER])
        assert found is not None
        assert found.token_ids == [1, 2]
        found.token_ids.append(3)
