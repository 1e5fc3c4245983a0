"""Owns the reading of one call whose arguments stand between tags, without types. Knows no markers around it."""

import re
from dataclasses import dataclass
from enum import Enum, auto

from midstream.routing.watching.buffered_reader import BufferedReader
from midstream.routing.watching.events import ArgumentPart, ArgumentsEnd, NameEnd, NamePart, ParseEvent, RawArgument

_NAME = re.compile(r"""[^\s<>"]+""")
MAX_NAME = 512


@dataclass(frozen=True)
class Tags:
    """The texts between a call's parts; white space may stand between any two of them."""

    name_end: str
    """After the name; "" where a tag or white space ends it."""
    argument_open: str
    key_end: tuple[str, ...]
    """What stands between a key and its value."""
    value_end: str
    call_end: str
    has_newlines: bool = False
    """A value stands on lines of its own: one newline at each end is not part of it."""
    may_lack_value_end: bool = False
    """A line that begins with the next argument, or with the call's end, ends the value too."""


class _State(Enum):
    NAME = auto()
    NAME_END = auto()
    BETWEEN = auto()
    KEY = auto()
    KEY_END = auto()
    VALUE = auto()


class TaggedCall(BufferedReader):
    """Feeds on `NAME name_end (argument_open KEY key_end VALUE value_end)* call_end`."""

    def __init__(self, tags: Tags) -> None:
        super().__init__()
        self._tags = tags
        self._state = _State.NAME
        self._key = ""
        self._num_key_ends = 0
        ends = [re.escape(tags.value_end)]
        if tags.may_lack_value_end:
            ends += [rf"(?=\n{re.escape(text)})" for text in (tags.argument_open, tags.call_end)]
        self._value_end = re.compile("|".join(ends))
        self._longest_end = 1 + max(len(tags.value_end), len(tags.argument_open), len(tags.call_end))
        self._num_scanned = 0
        self._num_told = 0

    def _step(self) -> list[ParseEvent] | None:
        match self._state:
            case _State.NAME:
                return self._in_name()
            case _State.NAME_END:
                return self._expect(self._tags.name_end, _State.BETWEEN)
            case _State.BETWEEN:
                return self._between()
            case _State.KEY:
                return self._in_key()
            case _State.KEY_END:
                return self._after_key()
            case _State.VALUE:
                return self._in_value()

    def _in_name(self) -> list[ParseEvent] | None:
        self._skip_space()
        if not self._text:
            return None
        found = _NAME.match(self._text)
        if found is None or len(found[0]) > MAX_NAME:
            return self._fail("no name follows the marker")
        if found.end() == len(self._text):
            # Told once: the trie of names is asked when the name has grown.
            return [NamePart(found[0])] if self._has_grown() else None
        self._state = _State.NAME_END
        return [NameEnd(self._take(found.end()))]

    def _has_grown(self) -> bool:
        grown, self._num_scanned = len(self._text) > self._num_scanned, len(self._text)
        return grown

    def _expect(self, text: str, next_state: _State) -> list[ParseEvent] | None:
        self._skip_space()
        if self._text.startswith(text):
            self._take(len(text))
            self._state = next_state
            return []
        return None if text.startswith(self._text) else self._fail(f"{text} is missing")

    def _between(self) -> list[ParseEvent] | None:
        self._skip_space()
        opening, closing = self._tags.argument_open, self._tags.call_end
        if self._text.startswith(opening):
            self._take(len(opening))
            self._state = _State.KEY
            return []
        if self._text.startswith(closing):
            self._take(len(closing))
            self.is_complete = True
            return [ArgumentsEnd()]
        if opening.startswith(self._text) or closing.startswith(self._text):
            return None
        return self._fail("text stands between its arguments")

    def _in_key(self) -> list[ParseEvent] | None:
        end = self._text.find(self._tags.key_end[0])
        if end < 0:
            return self._fail("an argument's name is too long") if len(self._text) > MAX_NAME else None
        self._key = self._take(end).strip()
        self._num_key_ends = 0
        self._state = _State.KEY_END
        return []

    def _after_key(self) -> list[ParseEvent] | None:
        done = self._expect(self._tags.key_end[self._num_key_ends], _State.KEY_END)
        if done is not None and self.error is None:
            self._num_key_ends += 1
            if self._num_key_ends == len(self._tags.key_end):
                self._num_scanned = self._num_told = 0
                self._state = _State.VALUE
        return done

    def _in_value(self) -> list[ParseEvent] | None:
        found = self._value_end.search(self._text, self._num_scanned)
        if found is None:
            # A long value is not searched again at each of its tokens.
            self._num_scanned = max(0, len(self._text) - self._longest_end)
            return self._part() if self.tells_parts else None
        value = self._take(found.end())[: found.start()]
        if self._tags.has_newlines:
            value = value.removeprefix("\n").removesuffix("\n")
        self._state = _State.BETWEEN
        return [RawArgument(self._key, value)]

    def _part(self) -> list[ParseEvent] | None:
        """What of the value is surely text: all but what may be its end."""
        if self._num_told == 0 and self._tags.has_newlines and self._text.startswith("\n"):
            self._num_told = 1
        text = self._text[self._num_told : self._num_scanned]
        if not text:
            return None
        self._num_told += len(text)
        return [ArgumentPart(self._key, text)]
