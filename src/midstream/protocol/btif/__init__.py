"""Owns BTIF/1, the one representation of a tool call between the decoder and a tool. Does no I/O."""

from midstream.protocol.btif.arguments import arguments_json, decode_arguments
from midstream.protocol.btif.decoding import Frame, decode
from midstream.protocol.btif.dumping import dump
from midstream.protocol.btif.encoding import FrameBuilder, encode
from midstream.protocol.btif.ids import tool_id
from midstream.protocol.btif.layout import Layout
from midstream.protocol.btif.values import ABSENT, Absent, DecimalText, EnumIndex, Tag, Value

__all__ = [
    "ABSENT",
    "Absent",
    "DecimalText",
    "EnumIndex",
    "Frame",
    "FrameBuilder",
    "Layout",
    "Tag",
    "Value",
    "arguments_json",
    "decode",
    "decode_arguments",
    "dump",
    "encode",
    "tool_id",
]
