"""Owns how messages are framed on a connection that is kept. Does no I/O and knows no payload."""

import struct
from dataclasses import dataclass
from enum import IntEnum

from midstream.errors import EnvelopeError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")  # of what follows
_HEAD = struct.Struct(">BQ")  # kind, call number


class Kind(IntEnum):
    HELLO = 0
    OPEN = 1
    PARTIAL = 2
    CALL = 3
    PROGRESS = 4
    RESULT = 5
    ERROR = 6
    CANCEL = 7
    PING = 8
    PONG = 9


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    call: int
    """Number of the call it belongs to; 0 for hello, ping and pong."""
    payload: bytes


def encode_message(kind: Kind, call: int, payload: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """The bytes of one message. Raises EnvelopeError where the peer would refuse it for its length."""
    length = _HEAD.size + len(payload)
    _check_length(length, max_bytes)
    return _LENGTH.pack(length) + _HEAD.pack(kind, call) + payload


class EnvelopeReader:
    """Cuts a stream of bytes into messages, however it arrives. After an EnvelopeError the stream is lost."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. EnvelopeError as soon as a length over the limit is seen."""
        self._buffer += data
        messages: list[Message] = []
        start = 0
        while (end := self._end_of_message(start)) is not None:
            messages.append(self._message(start + _LENGTH.size, end))
            start = end
        del self._buffer[:start]
        return messages

    def _end_of_message(self, start: int) -> int | None:
        if len(self._buffer) < start + _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        _check_length(length, self._max_bytes)
        end = start + _LENGTH.size + int(length)
        return end if end <= len(self._buffer) else None

    def _message(self, start: int, end: int) -> Message:
        kind, call = _HEAD.unpack_from(self._buffer, start)
        try:
            return Message(Kind(kind), call, bytes(self._buffer[start + _HEAD.size : end]))
        except ValueError:
            raise EnvelopeError(f"unknown message kind {kind}", offset=_LENGTH.size) from None


def _check_length(length: int, max_bytes: int) -> None:
    if length > max_bytes:
        raise EnvelopeError(f"message of {length} bytes; the limit is {max_bytes}", offset=0)
    if length < _HEAD.size:
        raise EnvelopeError(f"message of {length} bytes; its kind and call number are {_HEAD.size}", offset=0)
