"""Owns the question where a literal ends in text that is no JSON: brackets and quotes of a dialect's own."""

import re

MAX_DEPTH = 64

_CLOSING = {"(": ")", "[": "]", "{": "}"}


class LiteralScanner:
    """Finds the end of one value: the first of `ends` outside of its quotes and brackets.

    A backslash escapes inside quotes where `has_escapes`. Call `find_end` again when the text has grown.
    """

    def __init__(self, quotes: tuple[str, ...], ends: str, *, has_escapes: bool) -> None:
        self._quotes = tuple(sorted(quotes, key=len, reverse=True))
        self._ends = ends
        escape = r"|\\" if has_escapes else ""
        self._inside = {quote: re.compile(re.escape(quote) + escape) for quote in quotes}
        self._longest = max(map(len, quotes))
        self._stack: list[str] = []
        self._quote: str | None = None
        self._pos = 0
        self.is_malformed = False

    def find_end(self, text: str) -> int | None:
        """The index of the end in `text`, which begins with the value; None while it has not come. O(new text)."""
        while self._pos < len(text) and not self.is_malformed:
            if self._quote is not None:
                if not self._leave_quote(text):
                    return None
                continue
            if self._may_be_longer_quote(text):
                return None
            opened = next((quote for quote in self._quotes if text.startswith(quote, self._pos)), None)
            if opened is not None:
                self._quote = opened
                self._pos += len(opened)
            elif not self._stack and text[self._pos] in self._ends:
                return self._pos
            else:
                self._take(text[self._pos])
        return None

    def _leave_quote(self, text: str) -> bool:
        assert self._quote is not None
        found = self._inside[self._quote].search(text, self._pos)
        if found is None:
            self._pos = max(self._pos, len(text) - len(self._quote) + 1)
            return False
        if found[0] == "\\":
            if found.end() == len(text):
                self._pos = found.start()
                return False
            self._pos = found.end() + 1
        else:
            self._pos = found.end()
            self._quote = None
        return True

    def _may_be_longer_quote(self, text: str) -> bool:
        if len(text) - self._pos >= self._longest:
            return False
        rest = text[self._pos :]
        return any(len(quote) > len(rest) and quote.startswith(rest) for quote in self._quotes)

    def _take(self, character: str) -> None:
        if character in _CLOSING:
            self._stack.append(_CLOSING[character])
            self.is_malformed = len(self._stack) > MAX_DEPTH
        elif character in ")]}":
            self.is_malformed = not self._stack or self._stack.pop() != character
        self._pos += 1
