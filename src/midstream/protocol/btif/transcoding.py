"""Owns the way of one JSON text into BTIF values, in one pass. Knows nothing of fields and frames."""

import re
from collections.abc import Iterator
from datetime import date
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]

from midstream.errors import BtifError
from midstream.protocol.btif.layout import Shape
from midstream.protocol.btif.numbers import LITERAL, encode_number, varint
from midstream.protocol.btif.values import MAX_DECIMAL_BYTES, MAX_DEPTH, Tag

_WHITESPACE = re.compile(r"[ \t\n\r]*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_NAMES = (("null", Tag.NULL), ("true", Tag.TRUE), ("false", Tag.FALSE))


class Transcoder:
    """A strict JSON reader that gives encoded values. Errors carry their offset in the text (characters)."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0

    @property
    def offset(self) -> int:
        return self._pos

    def value(self, shape: Shape | None, depth: int) -> bytes:
        """Tag and value of the next JSON value, which has `depth` arrays and objects open around it."""
        self._skip_whitespace()
        match self._text[self._pos : self._pos + 1]:
            case '"':
                return encode_string(self._string(), shape)
            case "[":
                return self._array(shape, self._deeper(depth))
            case "{":
                return self._object(shape, self._deeper(depth))
            case _:
                return self._name() or self._number()

    def members(self) -> Iterator[str]:
        """Keys of the object that comes next; the caller takes each one's `value` before it goes on."""
        seen: set[str] = set()
        self._expect("{", "an object")
        if self._accept("}"):
            return
        while True:
            self._skip_whitespace()
            start = self._pos
            key = self._string()
            if key in seen:
                raise BtifError(f"key {key[:80]!r} is given twice", offset=start)
            seen.add(key)
            self._expect(":", "':'")
            yield key
            if self._accept("}"):
                return
            self._expect(",", "',' or '}'")

    def end(self) -> None:
        self._skip_whitespace()
        if self._pos != len(self._text):
            raise BtifError("text after the end of the JSON value", offset=self._pos)

    def _array(self, shape: Shape | None, depth: int) -> bytes:
        self._expect("[", "an array")
        items: list[bytes] = []
        while not self._accept("]"):
            if items:
                self._expect(",", "',' or ']'")
            items.append(self.value(shape.item(len(items)) if shape else None, depth))
        return bytes([Tag.ARRAY]) + varint(len(items)) + b"".join(items)

    def _object(self, shape: Shape | None, depth: int) -> bytes:
        values = {key: self.value(shape.member(key) if shape else None, depth) for key in self.members()}
        return encode_object(values)

    def _deeper(self, depth: int) -> int:
        if depth == MAX_DEPTH:
            raise BtifError(f"more than {MAX_DEPTH} arrays and objects open at once", offset=self._pos)
        return depth + 1

    def _string(self) -> str:
        start = self._pos
        self._expect('"', "a string")
        text: str
        try:
            text, self._pos = scanstring(self._text, self._pos, True)
            text.encode()
        except JSONDecodeError as fault:
            raise BtifError(fault.msg, offset=fault.pos) from None
        except UnicodeEncodeError:
            raise BtifError("string with a lone surrogate", offset=start) from None
        return text

    def _name(self) -> bytes | None:
        for name, tag in _NAMES:
            if self._text.startswith(name, self._pos):
                self._pos += len(name)
                return bytes([tag])
        return None

    def _number(self) -> bytes:
        literal = LITERAL.match(self._text, self._pos)
        if literal is None:
            raise BtifError("expected a JSON value", offset=self._pos)
        encoded = encode_number(literal)
        if encoded is None:
            message = f"number of {len(literal[0])} characters; the limit is {MAX_DECIMAL_BYTES} digits"
            raise BtifError(message, offset=self._pos)
        self._pos = literal.end()
        return encoded

    def _skip_whitespace(self) -> None:
        blank = _WHITESPACE.match(self._text, self._pos)
        assert blank is not None
        self._pos = blank.end()

    def _accept(self, character: str) -> bool:
        self._skip_whitespace()
        if not self._text.startswith(character, self._pos):
            return False
        self._pos += 1
        return True

    def _expect(self, character: str, what: str) -> None:
        if not self._accept(character):
            raise BtifError(f"expected {what}", offset=self._pos)


def encode_string(text: str, shape: Shape | None) -> bytes:
    if shape is not None:
        if (index := shape.enum_index.get(text)) is not None:
            return bytes([Tag.ENUM]) + varint(index)
        if shape.is_date and (days := days_of(text)) is not None:
            return bytes([Tag.DATE16]) + days.to_bytes(2, "big")
    data = text.encode()
    if len(data) <= 0xFF:
        return bytes([Tag.STR8, len(data)]) + data
    return bytes([Tag.STR]) + varint(len(data)) + data


def encode_object(values: dict[str, bytes]) -> bytes:
    pairs = sorted((key.encode(), value) for key, value in values.items())
    body = b"".join(varint(len(key)) + key + value for key, value in pairs)
    return bytes([Tag.OBJECT]) + varint(len(pairs)) + body


def days_of(text: str) -> int | None:
    """Days since 1970-01-01 of a real ISO date that fits in a u16, or None."""
    if not _DATE.fullmatch(text):
        return None
    try:
        days = date.fromisoformat(text).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        return None
    return days if 0 <= days <= 0xFFFF else None


def date_of(days: int) -> str:
    return date.fromordinal(_EPOCH_ORDINAL + days).isoformat()
