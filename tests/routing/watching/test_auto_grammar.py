"""The grammar where the model decides whether it calls: text is free, a call is held to its form from its marker on."""

import pytest

from midstream.messages import ChoiceMode, ToolChoice, ToolPlan
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.watch import Watches
from tests.routing.watching.reading import spec
from tests.routing.watching.schemas import MARKER, STRING, call, object_of
from tests.routing.watching.walking import Walk, Writes


@pytest.fixture(scope="module")
def watches(tokenizer: Tokenizer) -> Watches:
    return Watches(tokenizer)


@pytest.fixture
def auto(tokenizer: Tokenizer, watches: Watches) -> Walk:
    return Walk(tokenizer, watches, ToolPlan("hermes", (spec("x", object_of(a=STRING)),)))


@pytest.mark.parametrize(
    "text",
    [
        "a < b, <tool> and <tool_cal> and <b>x</b>",
        "<tool_callx> <<<tool_call <",
        f"```\n{MARKER}\n{{'no': json",
        f"~~~ {MARKER} [1]\n",
        "é<😀<",
    ],
)
def test_text_is_free(auto: Walk, text: str) -> None:
    writes = Writes(text)
    auto.go(writes)
    assert not writes.was_refused
    assert auto.reading.text == text
    assert auto.num_forced == 0
    assert auto.has_ended


def test_the_turn_may_end_where_a_marker_has_only_begun(auto: Walk) -> None:
    for prefix in ("<", "<tool", "<tool_call"):
        auto.go(Writes(prefix, ends=False))
        assert auto.allows_end(), prefix
        assert auto.allows("x")
        assert auto.watch.forced_tokens() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<", "tool_call>"),
        ("text <tool_ca", "ll>"),
        (f"{call()}\n<", "tool_call>"),
        ("text", ""),
        ("<b", ""),
        ("```\n<tool", ""),
        ("text" + MARKER[:-1], ">"),
    ],
)
def test_a_marker_that_has_begun_is_expected_to_go_on(auto: Walk, text: str, expected: str) -> None:
    auto.go(Writes(text, ends=False))
    assert auto.watch.expected_text() == (expected and f'{expected}\n{{"name": "')


def test_a_values_quote_is_expected_where_it_is_not_sure_enough_to_be_forced(auto: Walk) -> None:
    auto.go(Writes(MARKER, ends=False))
    auto.take_forced()
    assert auto.text.endswith('"a":')
    assert auto.watch.expected_text() == ' "'
    auto.go(Writes(f'{auto.text} "x', ends=False))
    assert auto.watch.expected_text() == ""


def test_no_marker_is_expected_where_no_call_can_come(tokenizer: Tokenizer, watches: Watches) -> None:
    plan = ToolPlan("hermes", (spec("x", object_of(a=STRING)),), ToolChoice(ChoiceMode.NONE))
    walk = Walk(tokenizer, watches, plan)
    walk.go(Writes("<tool", ends=False))
    assert walk.watch.expected_text() == ""


def test_guesses_are_held_to_the_grammar(auto: Walk, tokenizer: Tokenizer) -> None:
    auto.go(Writes(f"text {MARKER}", ends=False))
    auto.take_forced()
    text, number = (tokenizer.encode(text, at_start=False) for text in (' "b"}', " 1}"))
    assert auto.watch.num_allowed(text) == len(text)
    assert auto.watch.num_allowed(number) == 1, "the space before a value, not the number"
    assert auto.watch.num_allowed(number[1:]) == 0
    assert auto.allows(' "'), "a look changes nothing"


def test_once_its_marker_is_whole_a_call_has_to_be_one(auto: Walk) -> None:
    auto.go(Writes(f"text {MARKER}", ends=False))
    auto.take_forced()
    assert auto.text == f'text {MARKER}\n{{"name": "x", "arguments": {{"a":'
    assert not auto.allows_end()
    assert auto.allows(' "')
    assert not auto.allows("1")


def test_after_the_call_text_is_free_again(auto: Walk) -> None:
    text = f"{call()} and {{free}} text <"
    writes = Writes(text)
    auto.go(writes)
    assert not writes.was_refused
    assert auto.text == text
    assert auto.reading.kinds == ["Routed", "Named", "Ready", "Closed"]


@pytest.mark.parametrize("between", ["", "\n", " then "])
def test_the_second_call_of_a_turn_is_held_to_the_grammar_too(auto: Walk, between: str) -> None:
    # `><` is one token: it ends a call and begins the next one's marker.
    auto.go(Writes(call() + between + MARKER, ends=False))
    auto.take_forced()
    assert auto.text.endswith(f'{between}{MARKER}\n{{"name": "x", "arguments": {{"a":')
    assert not auto.allows_end()


def test_a_token_that_reaches_beyond_the_marker_must_go_on_rightly(tokenizer: Tokenizer, watches: Watches) -> None:
    auto = Walk(tokenizer, watches, ToolPlan("hermes", (spec("x"),)))
    auto.go(Writes("<tool_call", ends=False))
    pieces = [piece for piece in auto.token_bytes if piece.startswith(b">") and len(piece) > 1]
    allowed = auto.allowed()
    assert allowed is not None
    assert allowed[auto.token_bytes.index(b">")]
    wrong = [piece for piece in pieces if not b'>\n{"name": "x"'.startswith(piece)]
    assert wrong
    assert not any(allowed[auto.token_bytes.index(piece)] for piece in wrong)


def test_a_token_that_begins_before_the_marker_counts(auto: Walk) -> None:
    piece = b" <"
    assert piece in auto.token_bytes
    auto.take(auto.token_bytes.index(piece))
    auto.go(Writes(f" {MARKER}", ends=False))
    auto.take_forced()
    assert auto.text.startswith(f' {MARKER}\n{{"name": "x"')


@pytest.mark.parametrize("stop", ["<|end|>", "<tool_box>", "Sure.<", " <", "😀x", "</tool_call>\nX", 'a": 7'])
@pytest.mark.parametrize("before", ["Sure.", "😀", "<", "<<tool_call", "a < b\n", f"{call()}\n", call()])
def test_a_call_is_held_to_the_grammar_where_its_text_was_held_back_for_a_stop_string(
    tokenizer: Tokenizer, watches: Watches, stop: str, before: str
) -> None:
    if stop in before + MARKER:
        return
    plan = ToolPlan("hermes", (spec("x", object_of(a=STRING)),))
    walk = Walk(tokenizer, watches, plan, stop=(stop,))
    walk.go(Writes(before + MARKER, ends=False))
    walk.take_forced()
    assert walk.text == f'{before}{MARKER}\n{{"name": "x", "arguments": {{"a":'
    assert not walk.allows("1")
    walk.go(Writes(f"{before}{call()}"))
    assert len(walk.reading.closed) == before.count(MARKER) + 1


def test_the_mask_is_written_only_where_something_is_forbidden(auto: Walk) -> None:
    assert auto.allowed() is None
    auto.go(Writes("plain text", ends=False))
    assert auto.allowed() is None


def test_a_marker_whose_end_is_held_back_is_held_to_the_grammar_all_the_same(
    tokenizer: Tokenizer, watches: Watches
) -> None:
    walk = Walk(tokenizer, watches, ToolPlan("hermes", (spec("x"),)), stop=("><|",))
    walk.go(Writes(MARKER, ends=False))
    assert walk.reading.text == ""
    assert not walk.allows("[")
    walk.go(Writes(call("{}")))
    assert walk.reading.runs == [("x", {})]
