"""Owns how a frame looks to a person. Reads frames only through the decoder."""

from midstream.protocol.btif.arguments import render_json
from midstream.protocol.btif.decoding import Reading, decode
from midstream.protocol.btif.layout import Layout
from midstream.protocol.btif.values import ABSENT, EnumIndex, Tag

_NAMED_BY_TAG = frozenset({Tag.ABSENT, Tag.NULL, Tag.TRUE, Tag.FALSE})


def dump(frame: bytes, layout: Layout | None = None) -> str:
    """One line a value: offset of its tag, tag, name, value. Raises BtifError on the first fault.

    0000  tool 0x00000003, 2 fields, 14 bytes
    0006  str8     airport  "PVG"
    000b  date16   date     2024-06-20
    """
    readings: list[Reading] = []
    whole = decode(frame, layout, on_value=readings.append)
    noun = "field" if len(whole.fields) == 1 else "fields"
    lines = [f"0000  tool 0x{whole.tool_id:08x}, {len(whole.fields)} {noun}, {len(frame)} bytes"]
    names = ["  " * reading.depth + _name(reading) for reading in readings]
    width = min(max(map(len, names), default=0), 40)
    for reading, name in zip(readings, names, strict=True):
        tag = reading.tag.name.lower()
        lines.append(f"{reading.offset:04x}  {tag:<7}  {name:<{width}}  {_text(reading)}".rstrip())
    return "\n".join(lines)


def _name(reading: Reading) -> str:
    return _printable(reading.label)


def _text(reading: Reading) -> str:
    value = reading.value
    if reading.tag in _NAMED_BY_TAG or value is ABSENT:
        return ""
    if reading.tag in (Tag.ARRAY, Tag.OBJECT):
        return f"{value} item{'' if value == 1 else 's'}"
    if isinstance(value, EnumIndex):
        return f"#{value.index}"
    return str(value) if reading.tag is Tag.DATE16 else _printable(render_json(value))


def _printable(text: str) -> str:
    # Keys and strings may hold line breaks and terminal escapes.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
