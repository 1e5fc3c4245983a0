"""Owns a hypothesis strategy for cutting a text into pieces. Knows nothing of what is cut."""

from itertools import pairwise

from hypothesis import strategies as st


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in up to nine pieces, some of them perhaps empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in pairwise([0, *places, len(text)])]
