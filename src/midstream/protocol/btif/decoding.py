"""Owns the reading of frames. Refuses every frame that an encoder would not have written; runs no tool.

A count or length is compared with the bytes that are left before anything is allocated for it.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from midstream.errors import BtifError
from midstream.protocol.btif.layout import Layout, Shape
from midstream.protocol.btif.numbers import decimal_fault, unzigzag
from midstream.protocol.btif.reader import ByteReader
from midstream.protocol.btif.transcoding import date_of, days_of
from midstream.protocol.btif.values import (
    ABSENT,
    MAX_DECIMAL_BYTES,
    MAX_DEPTH,
    DecimalText,
    EnumIndex,
    Tag,
    Value,
)

_TAGS = {int(tag): tag for tag in Tag}
_CONSTANTS: dict[Tag, Value] = {Tag.ABSENT: ABSENT, Tag.NULL: None, Tag.TRUE: True, Tag.FALSE: False}


@dataclass(frozen=True, slots=True)
class Frame:
    tool_id: int
    fields: tuple[Value, ...]
    """Field i is parameter i; one field more than the schema declares holds the undeclared arguments."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One value as it was met, for a reader that shows frames: `offset` is that of its tag."""

    offset: int
    depth: int
    label: str
    tag: Tag
    value: Value
    """Of an array or object, its count."""


def decode(frame: bytes, layout: Layout | None = None, on_value: Callable[[Reading], None] | None = None) -> Frame:
    """Read a frame whole. Raises BtifError with the byte offset of the first fault.

    Without a layout only the structure is checked and an enum stays an EnumIndex; with it, also that every
    value has the one encoding that the schema gives it. `on_value` sees each value, outer ones first.
    """
    return _Decoder(frame, layout, on_value).frame()


class _Decoder:
    def __init__(self, frame: bytes, layout: Layout | None, on_value: Callable[[Reading], None] | None) -> None:
        self._bytes = ByteReader(frame)
        self._layout = layout
        self._on_value = on_value

    def frame(self) -> Frame:
        if self._bytes.num_left < 6:
            raise BtifError(f"frame of {self._bytes.num_left} bytes; its header alone is 6", offset=0)
        tool_id, count = struct.unpack(">IH", self._bytes.take(6))
        self._bytes.check_count(count, at=4, min_bytes=1)
        self._check_fields(count)
        fields: list[Value] = []
        for i in range(count):
            start = self._bytes.pos
            fields.append(self._field(i))
            if fields[-1] is ABSENT and i == count - 1:
                raise BtifError("trailing absent field", offset=start)
        if self._bytes.num_left:
            raise BtifError(f"{self._bytes.num_left} bytes left over", offset=self._bytes.pos)
        return Frame(tool_id, tuple(fields))

    def _check_fields(self, count: int) -> None:
        if self._layout is None:
            return
        max_fields = len(self._layout.names) + (not self._layout.is_closed)
        if count > max_fields:
            raise BtifError(f"{count} fields; the schema has at most {max_fields}", offset=4)

    def _field(self, i: int) -> Value:
        if self._layout is None:
            return self._value(None, 0, f"field {i}", is_field=True)
        if i < len(self._layout.names):
            name = self._layout.names[i]
            return self._value(self._layout.argument(name), 0, name, is_field=True)
        return self._undeclared(self._layout)

    def _undeclared(self, layout: Layout) -> Value:
        start = self._bytes.pos
        if self._bytes.byte() != Tag.OBJECT:
            raise BtifError("the field of undeclared arguments is not an object", offset=start)
        value = self._object(layout.root, 0, start, "(undeclared)")
        if not value:
            raise BtifError("undeclared arguments that are none", offset=start)
        declared = next((key for key in value if key in layout.index), None)
        if declared is not None:
            raise BtifError(f"declared argument {declared[:80]!r} among the undeclared ones", offset=start)
        return value

    def _value(self, shape: Shape | None, depth: int, label: str, *, is_field: bool = False) -> Value:
        start = self._bytes.pos
        byte = self._bytes.byte()
        if byte not in _TAGS:
            raise BtifError(f"unknown tag 0x{byte:02X}", offset=start)
        tag = _TAGS[byte]
        if tag is Tag.ARRAY:
            return self._array(shape, depth, start, label)
        if tag is Tag.OBJECT:
            return self._object(shape, depth, start, label)
        if tag is Tag.ABSENT and not is_field:
            raise BtifError("absent inside an array or object", offset=start)
        value = self._scalar(tag, shape, start)
        self._note(start, depth, label, tag, value)
        return value

    def _scalar(self, tag: Tag, shape: Shape | None, start: int) -> Value:
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        match tag:
            case Tag.INT:
                return unzigzag(self._bytes.varint())
            case Tag.F64:
                return self._f64(start)
            case Tag.DECIMAL:
                return self._decimal(start)
            case Tag.ENUM:
                return self._enum(shape, start)
            case Tag.DATE16:
                return self._date(shape, start)
            case _:
                return self._string(tag, shape, start)

    def _array(self, shape: Shape | None, depth: int, start: int, label: str) -> list[Value]:
        self._check_depth(depth, start)
        count = self._bytes.count(min_bytes=1)
        self._note(start, depth, label, Tag.ARRAY, count)
        return [self._value(shape.item(i) if shape else None, depth + 1, f"[{i}]") for i in range(count)]

    def _object(self, shape: Shape | None, depth: int, start: int, label: str) -> dict[str, Value]:
        self._check_depth(depth, start)
        count = self._bytes.count(min_bytes=2)  # an empty key's length and a tag
        self._note(start, depth, label, Tag.OBJECT, count)
        values: dict[str, Value] = {}
        previous: bytes | None = None
        for _ in range(count):
            key_start = self._bytes.pos
            data = self._bytes.take(self._bytes.varint())
            if previous is not None and data <= previous:
                raise BtifError("key twice" if data == previous else "keys not sorted", offset=key_start)
            key = self._bytes.utf8(data)
            values[key] = self._value(shape.member(key) if shape else None, depth + 1, key)
            previous = data
        return values

    def _f64(self, start: int) -> float:
        (number,) = struct.unpack(">d", self._bytes.take(8))
        if not math.isfinite(number):
            raise BtifError("f64 that is NaN or infinite", offset=start)
        return float(number)

    def _decimal(self, start: int) -> DecimalText:
        length = self._bytes.varint()
        if length > MAX_DECIMAL_BYTES:
            raise BtifError(f"decimal of {length} bytes; the limit is {MAX_DECIMAL_BYTES}", offset=start)
        text = self._bytes.take(length).decode("latin-1")
        if fault := decimal_fault(text):
            raise BtifError(fault, offset=start)
        return DecimalText(text)

    def _enum(self, shape: Shape | None, start: int) -> EnumIndex | str:
        index = self._bytes.varint()
        if self._layout is None:
            return EnumIndex(index)
        text = shape.enum[index] if shape and index < len(shape.enum) else None
        if shape is None or not isinstance(text, str) or shape.enum_index[text] != index:
            raise BtifError(f"enum index {index} is none of the schema's", offset=start)
        return text

    def _date(self, shape: Shape | None, start: int) -> str:
        text = date_of(int.from_bytes(self._bytes.take(2), "big"))
        if self._layout is not None and not (shape and shape.is_date and text not in shape.enum_index):
            raise BtifError("date16 where the schema has none", offset=start)
        return text

    def _string(self, tag: Tag, shape: Shape | None, start: int) -> str:
        length = self._bytes.byte() if tag is Tag.STR8 else self._bytes.varint()
        if tag is Tag.STR and length <= 0xFF:
            raise BtifError(f"str of {length} bytes that should be str8", offset=start)
        text = self._bytes.utf8(self._bytes.take(length))
        if shape and text in shape.enum_index:
            raise BtifError("string that should be an enum index", offset=start)
        if shape and shape.is_date and days_of(text) is not None:
            raise BtifError("string that should be date16", offset=start)
        return text

    def _check_depth(self, depth: int, start: int) -> None:
        if depth >= MAX_DEPTH:
            raise BtifError(f"more than {MAX_DEPTH} arrays and objects open at once", offset=start)

    def _note(self, offset: int, depth: int, label: str, tag: Tag, value: Value) -> None:
        if self._on_value is not None:
            self._on_value(Reading(offset, depth, label, tag, value))
