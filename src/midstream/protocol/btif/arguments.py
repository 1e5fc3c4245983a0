"""Owns a frame's arguments by name, as Python values and as JSON text. Reads no bytes itself."""

import json
from typing import Any

from midstream.protocol.btif.decoding import decode
from midstream.protocol.btif.layout import Layout
from midstream.protocol.btif.values import ABSENT, DecimalText, Value


def decode_arguments(frame: bytes, layout: Layout) -> dict[str, Any]:
    """The arguments as Python values. int stays int and f64 float; dates and enums are str.

    A decimal is an `int` for an integer literal, else a `decimal.Decimal`, so no digit is lost; BtifError for
    an exponent of over 18 digits, which no Decimal has. Never call `int()` on one unchecked (1e999999).
    """
    return {name: _plain(value) for name, value in _arguments(frame, layout).items()}


def arguments_json(frame: bytes, layout: Layout) -> str:
    """The arguments as compact JSON text that encodes to the same frame."""
    return render_json(_arguments(frame, layout))


def render_json(value: Value) -> str:
    """JSON text of a decoded value that holds no EnumIndex."""
    match value:
        case dict():
            members = (f"{render_json(k)}:{render_json(v)}" for k, v in value.items() if v is not ABSENT)
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(render_json, value)) + "]"
        case DecimalText():
            return value.text
        case _:
            return json.dumps(value, ensure_ascii=False)


def _arguments(frame: bytes, layout: Layout) -> dict[str, Value]:
    fields = decode(frame, layout).fields
    named: dict[str, Value] = dict(zip(layout.names, fields, strict=False))
    if len(fields) > len(layout.names):
        undeclared = fields[-1]
        assert isinstance(undeclared, dict)
        named.update(undeclared)
    return {name: value for name, value in named.items() if value is not ABSENT}


def _plain(value: Value) -> Any:
    match value:
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case DecimalText():
            return value.number
        case _:
            return value
