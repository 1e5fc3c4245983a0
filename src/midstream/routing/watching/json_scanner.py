"""Owns strict incremental JSON: says where keys and values begin and end as the text arrives. Builds no values.

Offsets count characters from the first one fed. Source: RFC 8259.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

MAX_DEPTH = 66
"""A frame's 64 levels, inside the object of the arguments, inside that of the call."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_NUMBER_CHARACTERS = frozenset("0123456789+-.eE")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_WHITESPACE = frozenset(" \t\n\r")


@dataclass(frozen=True)
class KeyEnd:
    """A key of the object at `depth` (1 = the outermost) has ended: its text is [start, end), quotes included."""

    depth: int
    start: int
    end: int


@dataclass(frozen=True)
class ValueStart:
    """A value begins in the container at `depth` (0 = the root itself) with `character`."""

    depth: int
    start: int
    character: str


@dataclass(frozen=True)
class ValueEnd:
    """The value has ended: its text is [start, end). A number ends when the character after it is seen."""

    depth: int
    start: int
    end: int


ScanEvent = KeyEnd | ValueStart | ValueEnd


class _State(Enum):
    VALUE = auto()
    VALUE_OR_CLOSE = auto()
    KEY_OR_CLOSE = auto()
    KEY = auto()
    COLON = auto()
    AFTER_VALUE = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    LITERAL = auto()
    COMPLETE = auto()
    INVALID = auto()


class JsonScanner:
    """Reads one JSON value. `feed` stops at the value's end, or at the first character that no JSON can have."""

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._offset = 0
        self._containers: list[str] = []
        self._starts: list[int] = []
        self._is_key = False
        self._token = ""
        self._num_hex = 0
        self._events: list[ScanEvent] = []

    @property
    def is_complete(self) -> bool:
        return self._state is _State.COMPLETE

    @property
    def is_invalid(self) -> bool:
        return self._state is _State.INVALID

    @property
    def num_consumed(self) -> int:
        """Characters that belong to the value so far; the one that made it invalid is not counted."""
        return self._offset

    def feed(self, text: str) -> list[ScanEvent]:
        """Consume as much of `text` as belongs to the value; `num_consumed` tells how much. O(len(text))."""
        self._events = []
        for character in text:
            if self._state is _State.COMPLETE or self._state is _State.INVALID:
                break
            self._step(character)
        return self._events

    def _step(self, character: str) -> None:
        if self._state is _State.NUMBER:
            if character in _NUMBER_CHARACTERS:
                self._token += character
                self._offset += 1
                return
            if not _NUMBER.match(self._token):
                self._state = _State.INVALID
                return
            self._end_value(self._offset)
            if not self._containers:
                return  # a number at the root: the character after it is not ours
        if not self._accept(character):
            self._state = _State.INVALID
            return
        self._offset += 1

    def _accept(self, character: str) -> bool:
        """Take one character; False when JSON cannot go on with it."""
        match self._state:
            case _State.STRING:
                return self._in_string(character)
            case _State.ESCAPE:
                return self._in_escape(character)
            case _State.HEX:
                self._num_hex += 1
                self._state = _State.STRING if self._num_hex == 4 else _State.HEX
                return character in _HEX
            case _State.LITERAL:
                return self._in_literal(character)
        if character in _WHITESPACE:
            return True
        match self._state:
            case _State.VALUE:
                return self._begin_value(character)
            case _State.VALUE_OR_CLOSE:
                return self._close("]") if character == "]" else self._begin_value(character)
            case _State.KEY_OR_CLOSE if character == "}":
                return self._close("}")
            case _State.KEY_OR_CLOSE | _State.KEY:
                return self._begin_key(character)
            case _State.COLON:
                self._state = _State.VALUE
                return character == ":"
        return self._after_value(character)

    def _begin_value(self, character: str) -> bool:
        self._events.append(ValueStart(len(self._containers), self._offset, character))
        self._starts.append(self._offset)
        if character in "{[":
            self._containers.append(character)
            self._state = _State.KEY_OR_CLOSE if character == "{" else _State.VALUE_OR_CLOSE
            return len(self._containers) <= MAX_DEPTH
        if character == '"':
            self._is_key = False
            self._state = _State.STRING
            return True
        self._token = character
        if character in _LITERALS:
            self._state = _State.LITERAL
            return True
        self._state = _State.NUMBER
        return character == "-" or (character.isascii() and character.isdigit())

    def _begin_key(self, character: str) -> bool:
        self._starts.append(self._offset)
        self._is_key = True
        self._state = _State.STRING
        return character == '"'

    def _in_string(self, character: str) -> bool:
        if character == "\\":
            self._state = _State.ESCAPE
        elif character == '"':
            if self._is_key:
                self._events.append(KeyEnd(len(self._containers), self._starts.pop(), self._offset + 1))
                self._state = _State.COLON
            else:
                self._end_value(self._offset + 1)
        return character >= " "

    def _in_escape(self, character: str) -> bool:
        self._num_hex = 0
        self._state = _State.HEX if character == "u" else _State.STRING
        return character == "u" or character in _ESCAPES

    def _in_literal(self, character: str) -> bool:
        self._token += character
        expected = _LITERALS[self._token[0]]
        if self._token == expected:
            self._end_value(self._offset + 1)
            return True
        return expected.startswith(self._token)

    def _after_value(self, character: str) -> bool:
        container = self._containers[-1]
        if character == ",":
            self._state = _State.KEY if container == "{" else _State.VALUE
            return True
        return character in "}]" and self._close(character)

    def _close(self, character: str) -> bool:
        if self._containers[-1] + character not in ("{}", "[]"):
            return False
        self._containers.pop()
        self._end_value(self._offset + 1)
        return True

    def _end_value(self, end: int) -> None:
        self._events.append(ValueEnd(len(self._containers), self._starts.pop(), end))
        self._state = _State.AFTER_VALUE if self._containers else _State.COMPLETE
