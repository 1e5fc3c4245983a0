"""Owns the text that may be the beginning of a stop string. Never ends a sequence: it says that one is due."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StopResult:
    text: str
    """Text that is safe to show."""
    matched: str | None = None


class StopMatcher:
    """Finds the first of several stop strings in text that comes in pieces, and leaks no part of it.

    Holds back at most the longest stop string's length less one character. O(stops x piece) a piece.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    @property
    def is_empty(self) -> bool:
        """No text is held back."""
        return not self._held

    def feed(self, text: str) -> StopResult:
        if not self._stops:
            return StopResult(text)
        text = self._held + text
        matched = self._first_match(text)
        if matched is not None:
            self._held = ""
            return StopResult(text[: text.index(matched)], matched)
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return StopResult(text[: len(text) - num_held])

    def finish(self) -> str:
        """The held text, at an end that was no stop string; what comes next begins anew."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> str | None:
        # The one that ends first would have stopped the text first, had it come character by character.
        found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        return min(found)[2] if found else None

    def _num_held(self, text: str) -> int:
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
