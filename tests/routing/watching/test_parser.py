"""What is text, reasoning and call in a turn: the same at every cut, and nothing is ever lost."""

import itertools
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.routing.watching.dialects import DIALECTS, dialect_named
from midstream.routing.watching.events import (
    ArgumentEnd,
    ArgumentsEnd,
    ArgumentsText,
    CallBegin,
    CallEnd,
    CallInvalid,
    NameEnd,
    NamePart,
    ParseEvent,
    RawArgument,
    Reasoning,
    Text,
    TypedArgument,
)
from midstream.routing.watching.parser import CallParser, Markers
from tests.routing.watching.cutting import pieces_of
from tests.routing.watching.test_dialect_grammars import TURNS
from tests.support.cases import every_two_piece_cut

THINK = ("<think>", "</think>")
HERMES = dialect_named("hermes").markers(THINK, has_calls=True)
WITHOUT_REASONING = dialect_named("hermes").markers(None, has_calls=True)
ARRAY = dialect_named("required_json").markers(THINK, has_calls=True)
CALL = '<tool_call>\n{"name": "x", "arguments": {"a": 1}}\n</tool_call>'
SEEN = "x(a=1)"


def parse(
    pieces: Iterable[str],
    *,
    markers: Markers = HERMES,
    rejects: Callable[[ParseEvent], bool] = lambda event: False,
    is_cut: bool = False,
) -> list[str]:
    """The turn in short: `text`, `think:…`, `x(a=1)` for a whole call, `!raw` for one that is none."""
    parser = CallParser(markers)
    seen: list[str] = []
    for piece in [*pieces, None]:
        events = parser.finish(is_cut=is_cut) if piece is None else parser.feed(piece)
        for event in events:
            if rejects(event):
                parser.reject("not wanted")
            _note(seen, event)
    return [entry.replace("\x00", "") for entry in seen]


def _note(seen: list[str], event: ParseEvent) -> None:
    last = seen[-1] if seen else ""
    match event:
        case Text(text):
            seen[-1:] = [last + text] if last.startswith("\x00") else [*seen[-1:], "\x00" + text]
        case Reasoning(text):
            seen[-1:] = [last + text] if last.startswith("think:") else [*seen[-1:], "think:" + text]
        case CallBegin():
            seen.append("(")
        case NameEnd(name):
            seen[-1] = name + "("
        case ArgumentEnd(name, value) | TypedArgument(name, value) | RawArgument(name, value):
            seen[-1] = last + ("" if last.endswith("(") else ",") + f"{name}={value}"
        case ArgumentsEnd():
            seen[-1] = last + ")"
        case CallInvalid(raw_text):
            seen[-1] = "!" + raw_text
        case CallEnd():
            assert last.endswith(")"), "a call ended that had no arguments"
        case ArgumentsText() | NamePart():
            pass


def joined(seen: list[str]) -> str:
    """All of it that a client reads as content."""
    return "".join(entry.removeprefix("!") for entry in seen if not entry.startswith("think:"))


def assert_seen(text: str, expected: list[str], markers: Markers = HERMES) -> None:
    """Read at every cut, `text` gives `expected`; what follows a call that is none is joined to it."""
    for pieces in [[text], list(text), *every_two_piece_cut(text)]:
        seen = parse(pieces, markers=markers)
        assert _merged(seen) == expected, pieces


def _merged(seen: list[str]) -> list[str]:
    merged: list[str] = []
    is_text = False
    for entry in seen:
        was_text, is_text = is_text, entry.startswith("!") or not (entry.startswith("think:") or entry == SEEN)
        if was_text and is_text:
            merged[-1] += entry.removeprefix("!")
        else:
            merged.append(entry.removeprefix("!"))
    return merged


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("just text", ["just text"]),
        (CALL, [SEEN]),
        (f"Hi. {CALL} Bye.", ["Hi. ", SEEN, " Bye."]),
        (f"{CALL}\n{CALL}", [SEEN, SEEN]),
        (f"{CALL}{CALL}\n\n", [SEEN, SEEN]),
        (f"\n\n{CALL}\n", [SEEN]),
        ("  \n", ["  \n"]),
        ("\n\nHi\n\n", ["\n\nHi\n\n"]),
        (f"{CALL}\n\nmore\n", [SEEN, "\n\nmore\n"]),
        (CALL.removesuffix("\n</tool_call>"), [SEEN]),
        (CALL.removesuffix("ol_call>"), [SEEN]),
        (CALL.removesuffix("\n</tool_call>") + " and so on", [SEEN, " and so on"]),
        (CALL.removesuffix("\n</tool_call>") + CALL, [SEEN, SEEN]),
        (CALL.replace("\n", " \t\n  "), [SEEN]),
        (CALL.replace("\n", ""), [SEEN]),
    ],
)
def test_calls_and_the_white_space_around_them(text: str, expected: list[str]) -> None:
    assert_seen(text, expected)


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c <= d",
        "<",
        "<tool_cal",
        "<tool_callx>",
        "<<tool_cal<tool_ca<",
        "</tool_call>",
        "<TOOL_CALL>",
        "<tool_call> is a marker",
        "<tool_call>",
        "<tool_call>\n\n",
        "<tool_call>\n[1]\n</tool_call>",
        "<tool_call>\n{}\n</tool_call>",
        '<tool_call>\n{"name": "x", "arguments": {"a": 1',
        '<tool_call>\n{"name": "x", "arguments": {"a": }}\n</tool_call> end',
        '<tool_call>\n{"name": "x", "arguments": "a"}\n</tool_call> end',
        '<tool_call>\n{"name": ["<tool_call>"], "arguments": {}}\n</tool_call>',
    ],
)
def test_what_only_looks_like_a_call_is_text_to_the_last_character(text: str) -> None:
    assert_seen(text, [text])


def test_a_call_after_one_that_was_none_is_a_call() -> None:
    broken = '<tool_call>\n{"name": "x", "arguments": [1]}\n</tool_call>'
    assert_seen(f"{broken}\n{CALL}", [f"{broken}\n", SEEN])


def test_markup_inside_a_refused_object_is_text() -> None:
    inner = CALL.replace('"', '\\"').replace("\n", "\\n")
    text = f'<tool_call>\n{{"name": 5, "arguments": {{"body": "{inner}"}}}}\n</tool_call>'
    assert_seen(text, [text])


@pytest.mark.parametrize(
    ("before", "is_call"),
    [
        ("```\n", False),
        ("```json\n", False),
        ("~~~\n", False),
        ("````\n```\n", False),
        ("``` ", False),
        ("```\nx\n```\n", True),
        ("~~~\n```\n~~~\n", True),
        ("a `b` ", True),
        ("`` ` `` ", True),
        ("```inline``` ", True),
    ],
)
def test_a_call_in_a_code_fence_is_text(before: str, is_call: bool) -> None:
    assert_seen(before + CALL, [before, SEEN] if is_call else [before + CALL])


def test_a_call_in_a_fence_is_text_and_the_one_behind_it_is_not() -> None:
    fence = f"```\n{CALL}\n```\n"
    assert_seen(fence + CALL, [fence, SEEN])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>hm</think>ok", ["think:hm", "ok"]),
        (f"<think>hm {CALL}</think>\n\n{CALL}", [f"think:hm {CALL}", SEEN]),
        ("<think>hm", ["think:hm"]),
        ("<think>hm</thin", ["think:hm</thin"]),
        ("<think></think>ok", ["ok"]),
        ("\n<think>a</think>b<think>c</think>", ["think:a", "b", "think:c"]),
        ("<think>a</think>\n\nb", ["think:a", "\n\nb"]),
        ("<thin", ["<thin"]),
        ("a </think> b", ["a </think> b"]),
        ("```\n<think>\n```\n", ["```\n<think>\n```\n"]),
    ],
)
def test_reasoning_is_set_apart_and_holds_no_calls(text: str, expected: list[str]) -> None:
    assert_seen(text, expected)


def test_without_reasoning_markers_they_are_words() -> None:
    assert_seen(f"<think>{CALL}</think>", ["<think>", SEEN, "</think>"], WITHOUT_REASONING)


@pytest.mark.parametrize("rejected", [NameEnd, ArgumentEnd, ArgumentsEnd])
def test_a_call_that_is_rejected_is_text_up_to_the_end_of_its_json(rejected: type) -> None:
    text = f"a {CALL} b"
    for pieces in [[text], list(text), *every_two_piece_cut(text)]:
        seen = parse(pieces, rejects=lambda event: isinstance(event, rejected))
        assert joined(seen) == text
        assert any(entry.startswith("!<tool_call>") for entry in seen)
        assert SEEN not in seen


def test_only_the_call_at_hand_is_rejected() -> None:
    other = CALL.replace('"x"', '"y"')
    for pieces in [[other + CALL], list(other + CALL), *every_two_piece_cut(other + CALL)]:
        seen = parse(pieces, rejects=lambda event: event == NameEnd("y"))
        assert _merged(seen) == [other, SEEN]


@pytest.mark.parametrize("rejected", [NameEnd, ArgumentsEnd])
@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if not dialect.is_single])
def test_the_calls_behind_one_that_is_rejected_are_read(name: str, rejected: type) -> None:
    dialect = DIALECTS[name]
    opening = dialect.opening + dialect.before_first_call
    body = TURNS[name].removeprefix(opening).removesuffix(dialect.after_last_call)
    text = f"{opening}{body}{dialect.between_calls}{body}{dialect.after_last_call}"
    markers = dialect.markers(None, has_calls=True)
    [one] = parse([TURNS[name]], markers=markers)
    for number, pieces in enumerate([[text], list(text), *every_two_piece_cut(text)]):
        counter = itertools.count()
        seen = parse(
            pieces,
            markers=markers,
            rejects=lambda event, counter=counter: isinstance(event, rejected) and next(counter) == 0,  # type: ignore[misc]
        )
        assert seen[-1] == one, (number, seen)
        assert joined(seen[:-1]).strip() == f"{opening}{body}".strip(), (number, seen)
        backwards = itertools.count(-1)
        seen = parse(
            pieces,
            markers=markers,
            rejects=lambda event, counter=backwards: isinstance(event, rejected) and next(counter) == 0,  # type: ignore[misc]
        )
        assert seen[0] == one, (number, seen)
        assert joined(seen[1:]).strip() == f"{dialect.between_calls}{body}{dialect.after_last_call}".strip()


def test_a_turn_that_is_cut_inside_a_call_says_so() -> None:
    parser = CallParser(HERMES)
    assert list(parser.feed("<tool_call>\n{")) == [CallBegin()]
    assert list(parser.finish(is_cut=True)) == [CallInvalid("<tool_call>\n{", "the answer was cut", is_cut=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"name": "x", "parameters": {"a": 1}}]', [SEEN]),
        (' [ {"name": "x", "arguments": {"a": 1}} , {"name": "x", "parameters": {"a": 1}} ] \n', [SEEN, SEEN]),
        ('<think>hm</think>\n[{"name": "x", "parameters": {"a": 1}}]', ["think:hm", SEEN]),
        ('[{"name": "x", "parameters": {"a": 1}}] and text', [SEEN, " and text"]),
        ('[{"name": "x", "parameters": {"a": 1}}', [SEEN]),
        ("no array [1]", ["no array [1]"]),
        ("[]", ["[]"]),
        ("[1, 2]", ["[1, 2]"]),
        ('[{[{"name": "x", "parameters": {"a": 1}}]', ['[{[{"name": "x", "parameters": {"a": 1}}]']),
        ('x [{"name": "x", "parameters": {"a": 1}}]', ['x [{"name": "x", "parameters": {"a": 1}}]']),
    ],
)
def test_a_turn_that_is_an_array_of_calls(text: str, expected: list[str]) -> None:
    assert_seen(text, expected, ARRAY)


PARTS = st.sampled_from(
    [
        CALL,
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "```",
        "~~~",
        "\n",
        " ",
        "a",
        "<",
        "{",
        '"',
        '{"name": "x", "arguments": {',
        '"a": 1',
        "}",
        "}}",
        ",",
        '"name": "y"',
        '{"name": "x", "arguments": {}, "arguments": {}}',
        '{"arguments": {"a": 1}, "name": "x"}',
    ]
)


FRAGMENTS = [
    "x",
    "a",
    "1",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "=",
    ":",
    ",",
    ";",
    '"',
    "'",
    "\\",
    "\n",
    " ",
    "<",
    ">",
    "|",
    "é",
]


def parts_of(name: str) -> st.SearchStrategy[str]:
    """A dialect's markers, whole and begun, a whole call, and what may stand between them."""
    dialect = DIALECTS[name]
    texts = [text for text in dialect.texts if text]
    written = dialect.opening + dialect.before_first_call + dialect.before_name + "x"
    begun = [text[: len(text) // 2] for text in texts if len(text) > 1]
    calls = [written, written + (":0" if dialect.after_name else "") + dialect.before_arguments]
    return st.sampled_from([*texts, *begun, *calls, *FRAGMENTS, *THINK, "```", CALL])


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data(), is_cut=st.booleans())
def test_any_text_reads_the_same_at_any_cut(name: str, data: st.DataObject, is_cut: bool) -> None:
    markers = DIALECTS[name].markers(THINK, has_calls=True)
    text = "".join(data.draw(st.lists(parts_of(name) | PARTS, max_size=12)))
    whole = parse([text], markers=markers, is_cut=is_cut)
    assert _merged(parse(data.draw(pieces_of(text)), markers=markers, is_cut=is_cut)) == _merged(whole)
    assert _merged(parse(text, markers=markers, is_cut=is_cut)) == _merged(whole)


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if not dialect.reads_without_tools])
@given(data=st.data())
def test_text_without_a_whole_call_comes_out_as_it_went_in(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(parts_of(name) | PARTS, max_size=12)))
    markers = DIALECTS[name].markers(None, has_calls=True)
    seen = parse([text], markers=markers, rejects=lambda event: isinstance(event, NameEnd))
    assert joined(seen) == text


@pytest.mark.parametrize("name", DIALECTS)
def test_a_turn_that_begins_in_reasoning_shows_its_answer_after_it(name: str) -> None:
    opening, closing = DIALECTS[name].reasoning or THINK
    markers = DIALECTS[name].markers(THINK, has_calls=True, is_reasoning=True)
    assert_seen(f"hm {CALL}{closing}so", [f"think:hm {CALL}", "so"], markers)
    assert opening
