"""One call written as a JSON object: its name, its arguments one by one, and what makes it no call."""

from itertools import groupby

import pytest

from midstream.routing.watching.call_object import CallObject
from midstream.routing.watching.events import (
    ArgumentEnd,
    ArgumentsEnd,
    ArgumentsText,
    NameEnd,
    NamePart,
    ParseEvent,
)
from tests.support.cases import every_two_piece_cut

ARGUMENTS = '{"airport": "PVG", "limit": 5}'
WHOLE = [
    NameEnd("x"),
    ArgumentsText(ARGUMENTS),
    ArgumentEnd("airport", '"PVG"'),
    ArgumentEnd("limit", "5"),
    ArgumentsEnd(),
]


def feed(*pieces: str) -> tuple[CallObject, list[ParseEvent]]:
    call = CallObject()
    events: list[ParseEvent] = []
    for piece in pieces:
        events += call.feed(piece)
    return call, events


def told(events: list[ParseEvent]) -> list[ParseEvent]:
    """The events without the unfinished names, all arguments text in one piece in front of the arguments."""
    rest: list[ParseEvent] = [event for event in events if not isinstance(event, NamePart | ArgumentsText)]
    text = "".join(event.text for event in events if isinstance(event, ArgumentsText))
    return [*rest[:1], ArgumentsText(text), *rest[1:]] if text else rest


@pytest.mark.parametrize(
    "text",
    [
        f'{{"name": "x", "arguments": {ARGUMENTS}}}',
        f'{{"name":"x","parameters":{ARGUMENTS}}}',
        f'{{"arguments": {ARGUMENTS}, "name": "x"}}',
        f'\n{{ "id": 7, "name" : "x", "more": {{"name": "y", "arguments": [1]}}, "arguments" : {ARGUMENTS} }}',
        f'{{"n\\u0061me": "x", "arg\\u0075ments": {ARGUMENTS}}}',
        f'{{"name": "\\u0078", "arguments": {ARGUMENTS}}}',
        f'{{"name": "x", "arguments": {ARGUMENTS}, "type": "function", "type": null}}',
    ],
)
def test_a_call_is_read_however_it_is_written_and_cut(text: str) -> None:
    for pieces in [[text], list(text), *every_two_piece_cut(text)]:
        call, events = feed(*pieces)
        assert told(events) == WHOLE, pieces
        assert call.is_complete
        assert call.error is None


def test_the_name_is_told_as_it_grows_until_it_needs_an_escape() -> None:
    _, events = feed('{"name": "fl', "ight", "_st", 'atus", ')
    assert events == [NamePart("fl"), NamePart("flight"), NamePart("flight_st"), NameEnd("flight_status")]
    _, events = feed('{"name": "a', "\\u00", '62"')
    assert events == [NamePart("a"), NameEnd("ab")]


def test_arguments_before_the_name_wait_for_it() -> None:
    call, events = feed(f'{{"arguments": {ARGUMENTS}')
    assert events == []
    assert told(call.feed(', "name": "x"}')) == WHOLE


def test_an_argument_ends_only_with_what_ends_its_value() -> None:
    _, events = feed('{"name": "x", "arguments": {"a": 1')
    assert not [event for event in events if isinstance(event, ArgumentEnd)]
    _, events = feed('{"name": "x", "arguments": {"a": 1', "2,")
    assert [event for event in events if isinstance(event, ArgumentEnd)] == [ArgumentEnd("a", "12")]


def test_missing_arguments_are_an_empty_object() -> None:
    call, events = feed('{"name": "ping"}')
    assert events == [NameEnd("ping"), ArgumentsText("{}"), ArgumentsEnd()]
    assert call.error is None


def test_only_the_arguments_own_keys_are_arguments() -> None:
    _, events = feed('{"name": "x", "arguments": {"a": {"b": [{"c": 1}]}, "d": "{\\"e\\": 2}"}}')
    ends = [event for event in events if isinstance(event, ArgumentEnd)]
    assert ends == [ArgumentEnd("a", '{"b": [{"c": 1}]}'), ArgumentEnd("d", '"{\\"e\\": 2}"')]


def test_arguments_text_is_what_was_written_to_the_byte() -> None:
    written = '{ "a" :1.50e+3 ,"b":"\\u00e9\\/\\n" }'
    for pieces in ([f'{{"name": "x", "arguments": {written}}}'], list(f'{{"name": "x", "arguments": {written}}}')):
        _, events = feed(*pieces)
        assert "".join(event.text for event in events if isinstance(event, ArgumentsText)) == written


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"name": 5, "arguments": {}}', "not a string"),
        ('{"name": null, "arguments": {}}', "not a string"),
        ('{"name": "x", "arguments": "{\\"a\\": 1}"}', "not an object"),
        ('{"name": "x", "arguments": [1]}', "not an object"),
        ('{"name": "x", "arguments": null}', "not an object"),
        ('{"arguments": {}}', "no name"),
        ("{}", "no name"),
        ('{"name": "x", "name": "y", "arguments": {}}', "twice"),
        ('{"name": "x", "arg\\u0075ments": {"a": 1', None),
        ('{"arguments": {}, "arguments": {"a": 1}, "name": "x"}', "twice"),
        ('{"arguments": {}, "parameters": {"a": 1}, "name": "x"}', "twice"),
        ('{"id": 1, "id": 2, "name": "x", "arguments": {}}', "twice"),
        ('{"name": "x", "arguments": {"a": }}', "malformed"),
        ('{"name": "x" "arguments": {}}', "malformed"),
        ("{'name': 'x'}", "malformed"),
        ('{"name": "x\n", "arguments": {}}', "malformed"),
    ],
)
def test_what_is_no_call_says_why_at_every_cut(text: str, why: str | None) -> None:
    for pieces in [[text], list(text), *every_two_piece_cut(text)]:
        call, events = feed(*pieces)
        assert (call.error is None) == (why is None)
        assert why is None or why in (call.error or "")
        assert ArgumentsEnd() not in events


def test_a_call_that_is_whole_stays_one_whatever_follows_its_arguments() -> None:
    text = f'{{"name": "x", "arguments": {ARGUMENTS}, "name": "y", "arguments": {{"a": 2}}, "parameters": 5}}'
    for pieces in [[text], list(text), *every_two_piece_cut(text)]:
        call, events = feed(*pieces)
        assert told(events) == WHOLE
        assert call.error is None
        assert call.is_complete


def test_what_is_beyond_the_object_is_not_consumed() -> None:
    call, _ = feed('{"name": "x", "arguments": {}}\n</tool_call> and more')
    assert call.raw[: call.num_consumed] == '{"name": "x", "arguments": {}}'


def test_events_come_as_soon_as_their_text_has() -> None:
    text = f'{{"name": "x", "arguments": {ARGUMENTS}}}'
    call = CallObject()
    at = {type(event): i for i, character in enumerate(text) for event in call.feed(character)}
    assert at[NameEnd] == text.index('"x"') + 2
    assert at[ArgumentsEnd] == len(text) - 2
    assert [kind for kind, _ in groupby(sorted(at, key=lambda kind: at[kind]), key=lambda kind: kind.__name__)]
