"""Owns the reading of one JSON object of arguments: where each of them ends. Knows nothing of a name around it."""

import json

from midstream.routing.watching.events import ArgumentEnd, ArgumentPart, ArgumentsEnd, ArgumentsText, ParseEvent
from midstream.routing.watching.json_scanner import JsonScanner, KeyEnd, ValueEnd, ValueStart
from midstream.routing.watching.string_parts import StringParts


class ArgumentsObject:
    """Feeds on `{"a": 1, "b": …}` in pieces, from its brace on."""

    def __init__(self) -> None:
        self._scanner = JsonScanner()
        self._raw = ""
        self._num_told = 0
        self._key = ""
        self.tells_parts = False
        self._part: StringParts | None = None

    @property
    def is_complete(self) -> bool:
        return self._scanner.is_complete

    @property
    def is_malformed(self) -> bool:
        return self._scanner.is_invalid

    @property
    def num_consumed(self) -> int:
        return self._scanner.num_consumed

    def feed(self, text: str) -> list[ParseEvent]:
        """Consume what belongs to the object. O(len(text))."""
        self._raw += text
        events: list[ParseEvent] = []
        for event in self._scanner.feed(text):
            match event:
                case KeyEnd(depth=1, start=start, end=end):
                    self._key = json.loads(self._raw[start:end])
                case ValueStart(depth=1, start=start, character='"'):
                    self._part = StringParts(start + 1)
                case ValueEnd(depth=1, start=start, end=end):
                    self._part = None
                    events += [*self._untold(end), ArgumentEnd(self._key, self._raw[start:end])]
                case ValueEnd(depth=0, end=end):
                    events += [*self._untold(end), ArgumentsEnd()]
        return events + self._untold(self.num_consumed) + self._argument_part()

    def _argument_part(self) -> list[ParseEvent]:
        if self._part is None or not self.tells_parts:
            return []
        text = self._part.next(self._raw, self.num_consumed)
        return [ArgumentPart(self._key, text)] if text else []

    def _untold(self, end: int) -> list[ParseEvent]:
        text = self._raw[self._num_told : end]
        self._num_told = max(self._num_told, end)
        return [ArgumentsText(text)] if text else []
