"""Owns what is inside each kind of envelope message but BTIF frames. Does no I/O."""

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from midstream.errors import EnvelopeError

VERSION = 1
_PERCENT_UNKNOWN = 255
_HEAD_BYTES = 13  # length, kind and call number come before every payload


class ErrorCode(IntEnum):
    BAD_FRAME = 1
    UNKNOWN_TOOL = 2
    INVALID_ARGUMENTS = 3
    TOOL_FAILED = 4
    TIMED_OUT = 5
    OVER_LIMIT = 6
    CANCELLED = 7
    SHUTTING_DOWN = 8


@dataclass(frozen=True, slots=True)
class Hello:
    body: dict[str, Any]
    """The client: `name` and limits. The tool host: `tools`."""

    def pack(self) -> bytes:
        return bytes([VERSION]) + json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        _check_size(payload, 1)
        if payload[0] != VERSION:
            raise EnvelopeError(f"version {payload[0]}; this side speaks {VERSION}", offset=_HEAD_BYTES)
        try:
            body = json.loads(payload[1:])
        except (ValueError, RecursionError):
            raise EnvelopeError("hello that is not JSON", offset=_HEAD_BYTES + 1) from None
        if not isinstance(body, dict):
            raise EnvelopeError("hello that is not a JSON object", offset=_HEAD_BYTES + 1)
        return cls(body)


@dataclass(frozen=True, slots=True)
class Open:
    tool_id: int
    deadline_ms: int
    """For the run, from the moment that its call arrives."""

    def pack(self) -> bytes:
        return struct.pack(">II", self.tool_id, self.deadline_ms)

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        if len(payload) != 8:
            raise EnvelopeError(f"open of {len(payload)} bytes instead of 8", offset=_HEAD_BYTES)
        return cls(*struct.unpack(">II", payload))


@dataclass(frozen=True, slots=True)
class Partial:
    field_index: int
    text: str

    def pack(self) -> bytes:
        return struct.pack(">H", self.field_index) + self.text.encode(errors="replace")

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        _check_size(payload, 2)
        return cls(int.from_bytes(payload[:2], "big"), _text(payload, 2))


@dataclass(frozen=True, slots=True)
class Progress:
    percent: int | None
    text: str

    def pack(self) -> bytes:
        percent = _PERCENT_UNKNOWN if self.percent is None else max(0, min(100, self.percent))
        return bytes([percent]) + self.text.encode(errors="replace")

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        _check_size(payload, 1)
        percent = payload[0]
        if 100 < percent < _PERCENT_UNKNOWN:
            raise EnvelopeError(f"progress of {percent} percent", offset=_HEAD_BYTES)
        return cls(None if percent == _PERCENT_UNKNOWN else percent, _text(payload, 1))


@dataclass(frozen=True, slots=True)
class Result:
    media_type: str
    """ASCII, at most 255 characters."""
    content: bytes

    def pack(self) -> bytes:
        return bytes([len(self.media_type)]) + self.media_type.encode("ascii") + self.content

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        _check_size(payload, 1)
        end = 1 + payload[0]
        _check_size(payload, end)
        if not payload[1:end].isascii():
            raise EnvelopeError("media type that is not ASCII", offset=_HEAD_BYTES + 1)
        return cls(payload[1:end].decode("ascii"), payload[end:])


@dataclass(frozen=True, slots=True)
class Error:
    code: ErrorCode
    text: str

    def pack(self) -> bytes:
        return struct.pack(">H", self.code) + self.text.encode(errors="replace")

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        _check_size(payload, 2)
        code = int.from_bytes(payload[:2], "big")
        try:
            return cls(ErrorCode(code), _text(payload, 2))
        except ValueError:
            raise EnvelopeError(f"unknown error code {code}", offset=_HEAD_BYTES) from None


def _check_size(payload: bytes, min_bytes: int) -> None:
    if len(payload) < min_bytes:
        raise EnvelopeError(f"payload of {len(payload)} bytes; at least {min_bytes} belong", offset=_HEAD_BYTES)


def _text(payload: bytes, start: int) -> str:
    try:
        return payload[start:].decode()
    except UnicodeDecodeError as fault:
        offset = _HEAD_BYTES + start + fault.start
        raise EnvelopeError("text that is not UTF-8", offset=offset) from None
