"""Owns the making of frames, whole or a slot at a time. Never validates arguments against the schema."""

import struct

from midstream.errors import BtifError
from midstream.protocol.btif.layout import Layout
from midstream.protocol.btif.transcoding import Transcoder, encode_object
from midstream.protocol.btif.values import Tag


class FrameBuilder:
    """Fills a slot when that argument's JSON text is complete, in any order; joins the slots at the end."""

    def __init__(self, tool_id: int, layout: Layout) -> None:
        self._tool_id = tool_id
        self._layout = layout
        self._declared: dict[int, bytes] = {}
        self._undeclared: dict[str, bytes] = {}

    def put(self, name: str, value_json: str) -> None:
        """Encode one argument. Raises BtifError, leaving the slot empty, at an offset in `value_json`."""
        if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
            raise BtifError("a name with a lone surrogate", offset=0)
        text = Transcoder(value_json)
        value = self._encode(name, text)
        text.end()
        self._fill(name, value)

    def put_all(self, arguments_json: str) -> None:
        """Encode a whole arguments object. Raises BtifError at an offset in `arguments_json`."""
        text = Transcoder(arguments_json)
        for name in text.members():
            self._fill(name, self._encode(name, text))
        text.end()

    def has(self, name: str) -> bool:
        return self._layout.index.get(name) in self._declared or name in self._undeclared

    @property
    def missing_required(self) -> frozenset[str]:
        return frozenset(name for name in self._layout.required if not self.has(name))

    def build(self) -> bytes:
        """The frame of what has been put. O(bytes); may be called again after further puts."""
        slots = dict(self._declared)
        if self._undeclared:
            slots[len(self._layout.names)] = encode_object(self._undeclared)
        count = max(slots, default=-1) + 1
        absent = bytes([Tag.ABSENT])
        return struct.pack(">IH", self._tool_id, count) + b"".join(slots.get(i, absent) for i in range(count))

    def _encode(self, name: str, text: Transcoder) -> bytes:
        if self.has(name):
            raise BtifError(f"argument {name[:80]!r} is given twice", offset=text.offset)
        is_declared = name in self._layout.index
        if not is_declared and self._layout.is_closed:
            message = f"argument {name[:80]!r} is not declared and the schema allows no other"
            raise BtifError(message, offset=text.offset)
        # An undeclared argument lies inside one object more.
        return text.value(self._layout.argument(name), depth=0 if is_declared else 1)

    def _fill(self, name: str, value: bytes) -> None:
        index = self._layout.index.get(name)
        if index is None:
            self._undeclared[name] = value
        else:
            self._declared[index] = value


def encode(tool_id: int, layout: Layout, arguments_json: str) -> bytes:
    """The one frame of a call's arguments, from the text of a JSON object.

    Raises BtifError, at an offset in the text (characters), for whatever is not strict JSON, has a key twice,
    nests over 64 deep, or has a number or string that a frame cannot hold. Source: btif.md.
    """
    builder = FrameBuilder(tool_id, layout)
    builder.put_all(arguments_json)
    return builder.build()
