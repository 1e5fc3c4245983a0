"""Owns the question whether a place in the text is inside a Markdown code fence. Reads nothing else of Markdown.

Source: CommonMark 0.31, section 4.5.
"""

import re

_OPENING = re.compile(r" {0,3}(`{3,}|~{3,})(.*)\Z", re.DOTALL)
_CLOSING = re.compile(r" {0,3}(`{3,}|~{3,})[ \t\r]*\Z")


class FenceTracker:
    """Takes the text in pieces, in order. O(length of the current line) a piece."""

    def __init__(self) -> None:
        self._line = ""
        self._fence: str | None = None

    @property
    def is_inside(self) -> bool:
        """True inside a fence, and on a line that may open one."""
        return self._fence is not None or self._opening_fence() is not None

    def feed(self, text: str) -> None:
        *ended, rest = text.split("\n")
        for piece in ended:
            self._line += piece
            self._end_line()
        self._line += rest

    def _end_line(self) -> None:
        if self._fence is None:
            self._fence = self._opening_fence()
        elif self._closes(self._fence):
            self._fence = None
        self._line = ""

    def _opening_fence(self) -> str | None:
        if "`" not in self._line and "~" not in self._line:
            return None
        match = _OPENING.match(self._line)
        if match is None:
            return None
        fence, info = match.groups()
        # "```a```" on one line is inline code, not a fence.
        return None if fence[0] == "`" and "`" in info else str(fence)

    def _closes(self, fence: str) -> bool:
        match = _CLOSING.match(self._line)
        return match is not None and match[1].startswith(fence)
