"""Owns the frames of the engine's socket: a u32 length, then msgpack. Never touches a socket."""

import struct
from collections.abc import Iterator

import msgspec

from midstream.errors import EnvelopeError

_LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 256 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into frame bodies, however it arrives. O(bytes)."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that `data` completes. Raises EnvelopeError for a length over `MAX_FRAME_BYTES`."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise EnvelopeError(f"frame of {length} bytes; the limit is {MAX_FRAME_BYTES}", offset=start)
            end = start + _LENGTH.size + length
            if end > len(self._buffer):
                break
            yield bytes(self._buffer[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]
