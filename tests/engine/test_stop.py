"""Stop strings: found as early as text allows, never shown in part, however the text is cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.engine.stop import StopMatcher, StopResult
from tests.support.cases import seeded_random


def shown(pieces: Sequence[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text shown for `pieces`, and the stop string that ended it."""
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        found = matcher.feed(piece)
        text += found.text
        if found.matched is not None:
            return text, found.matched
    return text + matcher.finish(), None


def by_definition(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Read character by character; the first moment at which a stop string is complete ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


CASES = [
    ("alpha STOP omega", ("STOP",)),
    ("alpha STOSTOP omega", ("STOP",)),
    ("aabaabaaab", ("aabaaab",)),
    ("no stop at all, STO", ("STOP",)),
    ("first second", ("second", "first")),
    ("abcd", ("bc", "abcd")),
    ("abcd", ("abcd", "d")),
    ("xabcab", ("abcab", "bc")),
    ("line\n\nUser: hi", ("\nUser:", "\n\n")),
    ("ééé🙂end", ("🙂", "é🙂")),
    ("STOP", ("STOP",)),
    ("", ("STOP",)),
]


@pytest.mark.parametrize(("text", "stops"), CASES)
def test_every_way_to_cut_the_text_gives_the_same(text: str, stops: tuple[str, ...]) -> None:
    expected = by_definition(text, stops)
    cuts = [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text))), *seeded_random(text, 30)]
    cuts += [[text[:i], text[i:k], text[k:]] for i in range(len(text)) for k in range(i, len(text))]
    for pieces in cuts:
        assert shown(pieces, stops) == expected, pieces


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
)
def test_any_text_and_any_stops_give_what_the_definition_gives(pieces: list[str], stops: tuple[str, ...]) -> None:
    assert shown(pieces, stops) == by_definition("".join(pieces), stops)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("ab", max_size=3), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
)
def test_what_is_held_back_is_no_more_than_could_still_become_a_stop_string(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    matcher = StopMatcher(stops)
    seen = told = ""
    for piece in pieces:
        seen += piece
        found = matcher.feed(piece)
        told += found.text
        if found.matched is not None:
            return
        held = seen[len(told) :]
        assert seen == told + held
        lengths = [k for stop in stops for k in range(len(stop)) if seen.endswith(stop[:k])]
        assert len(held) == max(lengths)


def test_text_without_stops_goes_straight_through() -> None:
    matcher = StopMatcher(())
    assert matcher.feed("abc") == StopResult("abc")
    assert matcher.finish() == ""


def test_held_text_comes_out_once() -> None:
    matcher = StopMatcher(("STOP",))
    assert matcher.feed("a ST") == StopResult("a ")
    assert matcher.finish() == "ST"
    assert matcher.finish() == ""
    assert matcher.feed("OP") == StopResult("OP")
