"""Owns what readers of calls that are no JSON share: text that waits until it is enough to go on with."""

from abc import ABC, abstractmethod

from midstream.routing.watching.events import ParseEvent


class BufferedReader(ABC):
    """Holds what it is fed until a part of the call is whole. Subclasses take from `_text`."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.is_complete = False
        self.tells_parts = False
        self._text = ""
        self._num_consumed = 0

    @property
    def is_malformed(self) -> bool:
        return self.error is not None

    @property
    def num_consumed(self) -> int:
        return self._num_consumed

    def feed(self, text: str) -> list[ParseEvent]:
        if self.is_complete or self.error is not None:
            return []
        self._text += text
        events: list[ParseEvent] = []
        while not self.is_complete and self.error is None:
            step = self._step()
            if step is None:
                break
            events += step
        return events

    @abstractmethod
    def _step(self) -> list[ParseEvent] | None:
        """Take the next part from `_text`; None when it has not come whole."""

    def _take(self, num_characters: int) -> str:
        taken, self._text = self._text[:num_characters], self._text[num_characters:]
        self._num_consumed += len(taken)
        return taken

    def _skip_space(self) -> None:
        self._take(len(self._text) - len(self._text.lstrip()))

    def _fail(self, reason: str) -> list[ParseEvent]:
        self.error = reason
        return []
