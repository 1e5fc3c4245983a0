"""Where a code fence is: as markdown-it, which reads the whole text anew at every place, says."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from midstream.routing.watching.fences import FenceTracker
from tests.routing.watching.cutting import pieces_of

COMMONMARK = MarkdownIt("commonmark")
MARK = "MARK"
PARTS = st.sampled_from(["`", "``", "```", "````", "~~~", "~", " ", "   ", "    ", "\t", "a", "\n", "\n", "\r\n", "py"])


def is_in_a_fence(before: str) -> bool:
    """Whether a word written after `before` belongs to a fence."""
    tokens = COMMONMARK.parse(f"{before}{MARK}\n")
    return any(MARK in token.content or MARK in token.info for token in tokens if token.type == "fence")


@given(st.lists(PARTS, max_size=14))
@example(["```", "\n", "    ", "```", "\n"])
@example(["~~~", "`", "\n", "```", "\n", "~~~", " ", "\n"])
def test_it_agrees_with_a_whole_markdown_reader_at_every_place(parts: list[str]) -> None:
    tracker, before = FenceTracker(), ""
    for part in parts:
        tracker.feed(part)
        before += part
        assert tracker.is_inside == is_in_a_fence(before), before


@given(st.data())
def test_every_cut_gives_the_same_place(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(PARTS, max_size=14)))
    whole, cut = FenceTracker(), FenceTracker()
    whole.feed(text)
    for piece in data.draw(pieces_of(text)):
        cut.feed(piece)
    assert cut.is_inside == whole.is_inside


@pytest.mark.parametrize(
    ("text", "is_inside"),
    [
        ("", False),
        ("see `code` and ``more``", False),
        ("```", True),
        ("```python\nx = 1\n", True),
        ("```python\nx = 1\n```\n", False),
        ("```python\nx = 1\n```", True),  # the line may go on: then it closes nothing
        ("```inline``` code ", False),
        ("````\n```\n", True),
        ("````\n```\n````\n", False),
        ("~~~ `tick`\n", True),
        ("~~~\n```\n~~~\n", False),
        ("    ```\n", False),
        ("text ```\n", False),
        ("``\n", False),
    ],
)
def test_plain_examples(text: str, is_inside: bool) -> None:
    tracker = FenceTracker()
    tracker.feed(text)
    assert tracker.is_inside is is_inside
