"""Owns the reading of one call written as Python: `name(key=literal, …)`. Evaluates literals alone, never code."""

import ast
import json
import re
from enum import Enum, auto

from midstream.routing.watching.buffered_reader import BufferedReader
from midstream.routing.watching.events import ArgumentsEnd, NameEnd, NamePart, ParseEvent, TypedArgument
from midstream.routing.watching.literal_scanner import LiteralScanner

_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_BEGUN_KEY = re.compile(r"\s*(?:[A-Za-z_]\w*\s*)?")
_JSON_NAMES = {"true": "True", "false": "False", "null": "None"}
MAX_NAME = 512


class _State(Enum):
    NAME = auto()
    KEY = auto()
    VALUE = auto()


class PythonCall(BufferedReader):
    """Feeds on a call with keyword arguments. Positional ones, names and expressions are no call."""

    def __init__(self) -> None:
        super().__init__()
        self._state = _State.NAME
        self._key = ""
        self._scanner = _scanner()
        self._num_told = 0
        self._may_close = True

    def _step(self) -> list[ParseEvent] | None:
        match self._state:
            case _State.NAME:
                return self._in_name()
            case _State.KEY:
                return self._in_key()
            case _State.VALUE:
                return self._in_value()

    def _in_name(self) -> list[ParseEvent] | None:
        self._skip_space()
        found = _NAME.match(self._text)
        if found is None or len(found[0]) > MAX_NAME:
            return self._fail("no call follows") if self._text else None
        after = self._text[found.end() :].lstrip()
        if not after:
            if len(found[0]) <= self._num_told:
                return None
            self._num_told = len(found[0])
            return [NamePart(found[0])]
        if after[0] != "(":
            return self._fail("no call follows")
        self._take(len(self._text) - len(after) + 1)
        self._state = _State.KEY
        return [NameEnd(found[0])]

    def _in_key(self) -> list[ParseEvent] | None:
        self._skip_space()
        if self._text.startswith(")") and self._may_close:
            self._take(1)
            self.is_complete = True
            return [ArgumentsEnd()]
        found = _KEY.match(self._text)
        if found is not None:
            self._key = found[1]
            self._take(found.end())
            self._scanner = _scanner()
            self._state = _State.VALUE
            return []
        is_begun = len(self._text) <= MAX_NAME and _BEGUN_KEY.fullmatch(self._text)
        return None if is_begun else self._fail("its arguments are not all `name=value`")

    def _in_value(self) -> list[ParseEvent] | None:
        end = self._scanner.find_end(self._text)
        if self._scanner.is_malformed:
            return self._fail(f"argument {self._key!r} is no literal")
        if end is None:
            return None
        value = literal_json(self._text[:end])
        if value is None:
            return self._fail(f"argument {self._key!r} is no literal")
        self._take(end)
        self._may_close = True
        if self._text.startswith(","):
            self._take(1)
        self._state = _State.KEY
        return [TypedArgument(self._key, value)]


def literal_json(text: str) -> str | None:
    """The JSON of a Python literal (JSON's own `true`, `false` and `null` are taken too); None where it has none."""
    text = text.strip()
    try:
        value = ast.literal_eval(_JSON_NAMES.get(text, text))
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _scanner() -> LiteralScanner:
    return LiteralScanner(('"', "'", '"""', "'''"), ",)", has_escapes=True)
