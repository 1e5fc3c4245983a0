"""Owns the marking of untrusted strings: a sentinel breaks every added token in them. Never drops it.

The sentinel is a Unicode noncharacter that the input does not hold. `Tokenizer.encode_escaped` drops it after
the added tokens are split off: marked text becomes ordinary tokens, all else is as if it had not been there.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from midstream.errors import RequestError

NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
MAX_DEPTH = 64


class Marker:
    """Breaks the texts in `added`, wherever they stand in a string, and where a string could complete one."""

    def __init__(self, added: Collection[str]) -> None:
        longest_first = sorted(added, key=len, reverse=True)
        # A look-ahead takes one character a match, so that a token inside another is found too.
        self._starts = (
            re.compile("(?=" + "|".join(map(re.escape, longest_first)) + ")(.)", re.DOTALL) if added else None
        )
        heads = {text[:cut] for text in added for cut in range(1, len(text))}
        tails = {text[cut:] for text in added for cut in range(1, len(text))}
        # A word is no part of a frame, and marking one would hide a role from the template.
        self._heads = {head for head in heads if not head.isalnum()}
        self._tails = {tail for tail in tails if not tail.isalnum()}
        self._max_part = max((len(text) - 1 for text in added), default=0)

    def mark(self, value: Any, sentinel: str) -> Any:
        """Return a copy of `value` with every string in it marked, keys included."""
        if isinstance(value, str):
            return self._mark_edges(value, self._break_tokens(value, sentinel), sentinel)
        if isinstance(value, dict):
            return {self._break_tokens(key, sentinel): self.mark(item, sentinel) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item, sentinel) for item in value]
        return value

    def _break_tokens(self, text: str, sentinel: str) -> str:
        return text if self._starts is None else self._starts.sub(rf"\1{sentinel}", text)

    def _mark_edges(self, text: str, marked: str, sentinel: str) -> str:
        """Keep the template's own text around a string from completing a token that it begins or ends."""
        cuts = range(1, min(self._max_part, len(text)) + 1)
        opens = sentinel if any(text[:cut] in self._tails for cut in cuts) else ""
        closes = sentinel if any(text[-cut:] in self._heads for cut in cuts) else ""
        return opens + marked + closes


def choose_sentinel(value: Any) -> str:
    """Return a noncharacter that no string in `value` holds. Raises RequestError when all are taken."""
    taken: set[str] = set()
    candidates = set(NONCHARACTERS)
    for text in _strings(value, 0):
        taken |= candidates & set(text)
    for candidate in NONCHARACTERS:
        if candidate not in taken:
            return candidate
    raise RequestError("the messages hold every character from U+FDD0 to U+FDEF; leave one of them out")


def _strings(value: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise RequestError(f"the messages or tools are nested deeper than {MAX_DEPTH} levels; flatten them")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)
