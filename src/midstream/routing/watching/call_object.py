"""Owns the reading of one call written as a JSON object with a name and arguments. Knows no markers around it."""

import json

from midstream.routing.watching.events import (
    ArgumentEnd,
    ArgumentPart,
    ArgumentsEnd,
    ArgumentsText,
    NameEnd,
    NamePart,
    ParseEvent,
)
from midstream.routing.watching.json_scanner import JsonScanner, KeyEnd, ScanEvent, ValueEnd, ValueStart
from midstream.routing.watching.string_parts import StringParts

_ARGUMENTS_KEYS = ("arguments", "parameters")


class CallObject:
    """Feeds on `{"name": "x", "arguments": {…}}` in pieces. Arguments before the name wait for it.

    `raw[: num_consumed]` is what belongs to the object; `error` says why it is not a call, once it is not.
    A call whose name and arguments are complete stays one, whatever else the object holds.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.error: str | None = None
        self.tells_parts = False
        self._part: StringParts | None = None
        self.has_arguments = False
        self.name: str | None = None
        self._keys: set[str] = set()
        self._scanner = JsonScanner()
        self._key: str | None = None
        self._argument_key: str | None = None
        self._name_start: int | None = None
        self._arguments_start: int | None = None
        self._arguments_end: int | None = None
        self._num_told = 0
        self._early: list[ParseEvent] = []

    @property
    def is_complete(self) -> bool:
        return self._scanner.is_complete

    @property
    def is_malformed(self) -> bool:
        """No JSON has this beginning. An object with an `error` may still be well-formed."""
        return self._scanner.is_invalid

    @property
    def num_consumed(self) -> int:
        return self._scanner.num_consumed

    def feed(self, text: str) -> list[ParseEvent]:
        """Consume what belongs to the object; tell nothing more once it is not a call. O(len(text))."""
        self.raw += text
        scanned = self._scanner.feed(text)
        events: list[ParseEvent] = []
        for event in scanned:
            if self.error is None:
                events += self._on_scan(event)
        if self.error is None:
            events += self._name_part() + self._arguments_text(self.num_consumed) + self._argument_part()
            events += self._at_end() if self.is_complete else []
        if self.error is None and self.is_malformed:
            self.error = "its JSON is malformed"
        return events

    def _on_scan(self, event: ScanEvent) -> list[ParseEvent]:
        match event:
            case ValueStart(depth=0, character=character) if character != "{":
                self.error = "no JSON object follows the marker"
            case KeyEnd(depth=1):
                self._on_key(json.loads(self.raw[event.start : event.end]))
            case KeyEnd(depth=2) if self._is_in_arguments():
                self._argument_key = json.loads(self.raw[event.start : event.end])
            case ValueStart(depth=1):
                self._on_value_start(event)
            case ValueStart(depth=2, start=start, character='"') if self._is_in_arguments():
                self._part = StringParts(start + 1)
            case ValueEnd(depth=1) if self._key == "name":
                return self._on_name(json.loads(self.raw[event.start : event.end]))
            case ValueEnd(depth=1) if self._is_in_arguments():
                self._arguments_end = event.end
                return self._when_named([*self._arguments_text(event.end), ArgumentsEnd()])
            case ValueEnd(depth=2) if self._is_in_arguments():
                assert self._argument_key is not None
                self._part = None
                value = self.raw[event.start : event.end]
                return self._when_named([*self._arguments_text(event.end), ArgumentEnd(self._argument_key, value)])
        return []

    def _on_key(self, key: str) -> None:
        if self.name is not None and self._arguments_end is not None:
            self._key = None
            return
        self._key = key
        if key in self._keys:
            self.error = f"it has the key {key!r} twice"
        elif key in _ARGUMENTS_KEYS and self.has_arguments:
            self.error = "it has its arguments twice"
        self._keys.add(key)

    def _on_value_start(self, event: ValueStart) -> None:
        if self._key == "name":
            self._name_start = event.start + 1
            if event.character != '"':
                self.error = "its name is not a string"
        elif self._key in _ARGUMENTS_KEYS:
            self.has_arguments = True
            self._arguments_start = self._num_told = event.start
            if event.character != "{":
                self.error = "its arguments are not an object"

    def _on_name(self, name: str) -> list[ParseEvent]:
        self._name_start = None
        self.name = name
        early, self._early = self._early, []
        return [NameEnd(name), *early]

    def _is_in_arguments(self) -> bool:
        return self._arguments_start is not None and self._arguments_end is None

    def _name_part(self) -> list[ParseEvent]:
        if self._name_start is None:
            return []
        part = self.raw[self._name_start : self.num_consumed]
        return [] if "\\" in part else [NamePart(part)]

    def _argument_part(self) -> list[ParseEvent]:
        if self._part is None or not self.tells_parts or self.name is None:
            return []
        assert self._argument_key is not None
        text = self._part.next(self.raw, self.num_consumed)
        return [ArgumentPart(self._argument_key, text)] if text else []

    def _arguments_text(self, end: int) -> list[ParseEvent]:
        """The raw arguments text up to `end` that has not been told yet."""
        if self._arguments_start is None:
            return []
        end = min(end, self._arguments_end or end)
        if end <= self._num_told:
            return []
        text = self.raw[self._num_told : end]
        self._num_told = end
        return self._when_named([ArgumentsText(text)])

    def _when_named(self, events: list[ParseEvent]) -> list[ParseEvent]:
        if self.name is not None:
            return events
        self._early += events
        return []

    def _at_end(self) -> list[ParseEvent]:
        if self.name is None:
            self.error = "it has no name"
            return []
        if not self.has_arguments:
            return [ArgumentsText("{}"), ArgumentsEnd()]
        return []
