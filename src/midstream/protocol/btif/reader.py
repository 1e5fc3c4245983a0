"""Owns a position in the bytes of a frame. Knows nothing of tags and schemas."""

from midstream.errors import BtifError

_U64_BYTES = 10  # at most, as a varint


class ByteReader:
    """Takes bytes from the front. Every error carries the offset of what could not be read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.pos = 0

    @property
    def num_left(self) -> int:
        return len(self._data) - self.pos

    def take(self, length: int) -> bytes:
        if length > self.num_left:
            raise BtifError(f"{length} bytes wanted, {self.num_left} left", offset=self.pos)
        data = self._data[self.pos : self.pos + length]
        self.pos += length
        return data

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        start = self.pos
        value = 0
        for i in range(_U64_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                if byte == 0 and i > 0:
                    raise BtifError("varint not in its shortest form", offset=start)
                if value >= 2**64:
                    break
                return value
        raise BtifError("varint over 64 bits", offset=start)

    def count(self, *, min_bytes: int) -> int:
        """How many things of at least `min_bytes` each follow; refused where they cannot fit."""
        start = self.pos
        count = self.varint()
        self.check_count(count, at=start, min_bytes=min_bytes)
        return count

    def check_count(self, count: int, *, at: int, min_bytes: int) -> None:
        if count * min_bytes > self.num_left:
            raise BtifError(f"count of {count} runs past the end, {self.num_left} bytes away", offset=at)

    def utf8(self, data: bytes) -> str:
        """Text of the bytes just taken."""
        try:
            return data.decode()
        except UnicodeDecodeError as fault:
            offset = self.pos - len(data) + fault.start
            raise BtifError("text that is not UTF-8", offset=offset) from None
