"""The scanner agrees with a strict JSON reader on what is JSON, and says where keys and values are."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.routing.watching.json_scanner import MAX_DEPTH, JsonScanner, KeyEnd, ScanEvent, ValueEnd, ValueStart
from tests.routing.watching.cutting import pieces_of

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | FLOATS | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
TEXTS = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    VALUES,
    st.sampled_from([None, 1]),
    st.booleans(),
)
JSON_CHARACTERS = st.sampled_from([*'{}[]",:\\/ \t\n\r-+.0123456789eEtrufalsnbx\x00\x1f\x7f'])


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """JSON with one character taken out, put in or changed."""
    text = draw(TEXTS)
    place = draw(st.integers(0, len(text)))
    kept = draw(st.integers(0, 1))
    return text[:place] + draw(JSON_CHARACTERS | st.just("")) + text[place + kept :]


def scan(pieces: list[str]) -> tuple[JsonScanner, list[ScanEvent]]:
    scanner = JsonScanner()
    events: list[ScanEvent] = []
    for piece in pieces:
        events += scanner.feed(piece)
    return scanner, events


def is_json(text: str) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


@given(TEXTS | mutated())
def test_it_takes_exactly_what_a_strict_reader_takes(text: str) -> None:
    # Inside an array every value, numbers too, ends by itself.
    scanner, _ = scan([f"[{text}]"])
    is_whole = scanner.is_complete and scanner.num_consumed == len(text) + 2
    assert is_whole == is_json(f"[{text}]")


@given(st.data())
def test_every_cut_gives_the_same_events(data: st.DataObject) -> None:
    text = data.draw(TEXTS | mutated())
    whole, events = scan([text])
    cut, cut_events = scan(data.draw(pieces_of(text)))
    assert cut_events == events
    assert (cut.is_complete, cut.is_invalid, cut.num_consumed) == (
        whole.is_complete,
        whole.is_invalid,
        whole.num_consumed,
    )


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_keys_and_values_of_the_outermost_object_can_be_cut_out(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    _, events = scan([text])
    keys = [json.loads(text[e.start : e.end]) for e in events if isinstance(e, KeyEnd) and e.depth == 1]
    ends = [e for e in events if isinstance(e, ValueEnd) and e.depth == 1]
    assert dict(zip(keys, [json.loads(text[e.start : e.end]) for e in ends], strict=True)) == json.loads(text)
    starts = [e for e in events if isinstance(e, ValueStart) and e.depth == 1]
    assert [e.start for e in starts] == [e.start for e in ends]
    assert [e.character for e in starts] == [text[e.start] for e in ends]


def test_it_stops_at_the_end_of_the_value() -> None:
    scanner, _ = scan(['{"a": 1}', "  more"])
    assert scanner.is_complete
    assert scanner.num_consumed == len('{"a": 1}')
    assert scanner.feed('"x"') == []
    assert scanner.is_complete


def test_it_stops_before_the_character_that_no_json_has() -> None:
    scanner, _ = scan(['{"a": }', ' {"b": 1}'])
    assert scanner.is_invalid
    assert scanner.num_consumed == len('{"a": ')


@pytest.mark.parametrize("text", ["12", "-0.5e+7", "0"])
def test_a_number_at_the_root_ends_when_something_else_comes(text: str) -> None:
    scanner, _ = scan([text])
    assert not scanner.is_complete
    assert scanner.feed(" ") == [ValueEnd(0, 0, len(text))]
    assert scanner.is_complete


@pytest.mark.parametrize("text", ["01", "1.", ".5", "+1", "1e", "--1", "1-2", "-", "1.2.3", "0x1", "1_0", "١"])
def test_what_only_looks_like_a_number_is_none(text: str) -> None:
    scanner, _ = scan([f"[{text}]"])
    assert scanner.is_invalid


def test_arguments_may_nest_as_deep_as_a_frame_can() -> None:
    from midstream.protocol.btif.values import MAX_DEPTH as FRAME_DEPTH

    # The object of the call and that of the arguments lie around what a frame counts.
    assert MAX_DEPTH == FRAME_DEPTH + 2
    scanner, _ = scan(["[" * MAX_DEPTH + "]" * MAX_DEPTH])
    assert scanner.is_complete
    scanner, _ = scan(["[" * (MAX_DEPTH + 1)])
    assert scanner.is_invalid
    assert scanner.num_consumed == MAX_DEPTH


@given(st.text(max_size=8))
def test_a_string_may_hold_what_json_lets_it_hold(text: str) -> None:
    literal = '"' + re.sub(r'["\\]', r"\\\g<0>", text) + '"'
    scanner, _ = scan([literal])
    assert (scanner.is_complete and scanner.num_consumed == len(literal)) == is_json(literal)
