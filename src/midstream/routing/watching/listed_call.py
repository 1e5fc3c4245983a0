"""Owns what calls with listed arguments share: `name(key=value, …)`, whatever the brackets, signs and values are."""

import re
from abc import abstractmethod
from dataclasses import dataclass
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

MAX_NAME = 512


@dataclass(frozen=True)
class Listing:
    """The signs of one syntax."""

    name: str
    """A regular expression, as the next one."""
    key: str
    opening: str
    assigns: str
    closing: str


class _State(Enum):
    NAME = auto()
    KEY = auto()
    VALUE = auto()


class ListedCall(BufferedReader):
    """Feeds on `NAME opening (KEY assigns VALUE ,)* closing`. What a VALUE is, subclasses say."""

    def __init__(self, listing: Listing) -> None:
        super().__init__()
        self._listing = listing
        self._name = re.compile(listing.name)
        self._whole_key = re.compile(rf"\s*({listing.key})\s*{re.escape(listing.assigns)}")
        self._begun_key = re.compile(rf"\s*(?:{listing.key}\s*)?")
        self._state = _State.NAME
        self._key = ""
        self._scanner = self._new_scanner()
        self._num_told = 0

    @abstractmethod
    def _new_scanner(self) -> LiteralScanner:
        """Finds where one value ends."""

    @abstractmethod
    def _argument(self, key: str, text: str) -> TypedArgument | RawArgument | None:
        """What the text of a value stands for; None when it is none."""

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
        found = self._name.match(self._text)
        if found is None or len(found[0]) > MAX_NAME:
            return self._fail("no name follows the marker") if self._text else None
        after = self._text[found.end() :].lstrip()
        if not after:
            if len(found[0]) <= self._num_told:
                return None
            self._num_told = len(found[0])
            return [NamePart(found[0])]
        if not after.startswith(self._listing.opening):
            return self._fail("no arguments follow its name")
        self._take(len(self._text) - len(after) + len(self._listing.opening))
        self._state = _State.KEY
        return [NameEnd(found[0])]

    def _in_key(self) -> list[ParseEvent] | None:
        self._skip_space()
        if self._text.startswith(self._listing.closing):
            self._take(len(self._listing.closing))
            self.is_complete = True
            return [ArgumentsEnd()]
        found = self._whole_key.match(self._text)
        if found is not None:
            self._key = found[1]
            self._take(found.end())
            self._scanner = self._new_scanner()
            self._state = _State.VALUE
            return []
        is_begun = len(self._text) <= MAX_NAME and self._begun_key.fullmatch(self._text)
        return None if is_begun else self._fail(f"its arguments are not all `name{self._listing.assigns}value`")

    def _in_value(self) -> list[ParseEvent] | None:
        end = self._scanner.find_end(self._text)
        if end is None and not self._scanner.is_malformed:
            return None
        event = None if end is None else self._argument(self._key, self._text[:end].strip())
        if end is None or event is None:
            return self._fail(f"argument {self._key!r} is no value")
        self._take(end)
        if self._text.startswith(","):
            self._take(1)
        self._state = _State.KEY
        return [event]
