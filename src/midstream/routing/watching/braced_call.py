"""Owns the reading of one call written as `name{key:value,…}` with quotes of the dialect's own (Gemma)."""

import json
import re
from enum import Enum, auto

from midstream.routing.watching.buffered_reader import BufferedReader
from midstream.routing.watching.events import (
    ArgumentsEnd,
    NameEnd,
    NamePart,
    ParseEvent,
    RawArgument,
    TypedArgument,
)
from midstream.routing.watching.literal_scanner import LiteralScanner

_NAME = re.compile(r"[^\s{}:,<>|\[\]]+")
_KEY = re.compile(r"\s*([^\s{}:,<>|\[\]]+)\s*:")
_BEGUN_KEY = re.compile(r"\s*(?:[^\s{}:,<>|\[\]]+\s*)?")
_ATOM = re.compile(r"\s*([^\s{}\[\]:,]+)\s*")
MAX_NAME = 512


class _State(Enum):
    NAME = auto()
    KEY = auto()
    VALUE = auto()


class BracedCall(BufferedReader):
    """Feeds on `name{key:VALUE,…}`; a VALUE is quoted text, a number, a word, a list or an object of them."""

    def __init__(self, quote: str) -> None:
        super().__init__()
        self._quote = quote
        self._state = _State.NAME
        self._key = ""
        self._scanner = self._new_scanner()
        self._num_told = 0

    def _new_scanner(self) -> LiteralScanner:
        return LiteralScanner((self._quote,), ",}", has_escapes=False)

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
            return self._fail("no name follows the marker") if self._text else None
        after = self._text[found.end() :].lstrip()
        if not after:
            if len(found[0]) <= self._num_told:
                return None
            self._num_told = len(found[0])
            return [NamePart(found[0])]
        if after[0] != "{":
            return self._fail("no arguments follow its name")
        self._take(len(self._text) - len(after) + 1)
        self._state = _State.KEY
        return [NameEnd(found[0])]

    def _in_key(self) -> list[ParseEvent] | None:
        self._skip_space()
        if self._text.startswith("}"):
            self._take(1)
            self.is_complete = True
            return [ArgumentsEnd()]
        found = _KEY.match(self._text)
        if found is not None:
            self._key = found[1]
            self._take(found.end())
            self._scanner = self._new_scanner()
            self._state = _State.VALUE
            return []
        is_begun = len(self._text) <= MAX_NAME and _BEGUN_KEY.fullmatch(self._text)
        return None if is_begun else self._fail("its arguments are not all `name:value`")

    def _in_value(self) -> list[ParseEvent] | None:
        end = self._scanner.find_end(self._text)
        if self._scanner.is_malformed:
            return self._fail(f"argument {self._key!r} is no value")
        if end is None:
            return None
        event = self._argument(self._text[:end].strip())
        if event is None:
            return self._fail(f"argument {self._key!r} is no value")
        self._take(end)
        if self._text.startswith(","):
            self._take(1)
        self._state = _State.KEY
        return [event]

    def _argument(self, text: str) -> TypedArgument | RawArgument | None:
        """Quoted text and bare words have no certain type: the template quotes by the schema, a model may not."""
        quote = self._quote
        if text.startswith(quote) and text.endswith(quote) and len(text) >= 2 * len(quote):
            return RawArgument(self._key, text[len(quote) : -len(quote)])
        if text[:1] in ("[", "{"):
            value = braced_json(text, quote)
            return None if value is None else TypedArgument(self._key, value)
        return RawArgument(self._key, text) if text else None


def braced_json(text: str, quote: str) -> str | None:
    """The JSON of a list or an object: quoted parts become strings, words that are no JSON values too."""
    parts = text.split(quote)
    written = [json.dumps(part, ensure_ascii=False) if i % 2 else _plain(part) for i, part in enumerate(parts)]
    try:
        return json.dumps(json.loads("".join(written)), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _plain(text: str) -> str:
    return _ATOM.sub(lambda found: _word(found[1]), text)


def _word(word: str) -> str:
    try:
        json.loads(word)
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return word
