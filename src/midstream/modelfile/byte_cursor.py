"""Owns a read position in untrusted bytes: checks each against what is left. Knows no format."""

import mmap
import struct
from pathlib import Path

from midstream.errors import ModelFileError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ByteCursor:
    """Little-endian reads from `data`. Raises ModelFileError, naming the file, before it allocates."""

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self._data = data
        self._path = path
        self.size = len(data)
        self.position = 0

    @property
    def num_left(self) -> int:
        return self.size - self.position

    def error(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self._path} {message}")

    def take(self, num_bytes: int, what: str) -> bytes:
        if num_bytes > self.num_left:
            raise self.error(
                f"is cut short: {what} needs {num_bytes} bytes at {self.position}, {self.num_left} are left"
            )
        start = self.position
        self.position += num_bytes
        return self._data[start : self.position]

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def count(self, min_item_bytes: int, what: str) -> int:
        """Read how many items follow, each at least `min_item_bytes` long."""
        count = self.u64(f"the number of {what}")
        limit = self.num_left // min_item_bytes
        if count > limit:
            raise self.error(f"claims {count} {what}; the {self.num_left} bytes left hold {limit} at most")
        return count

    def string(self, what: str) -> str:
        return self._text(self.take(self.u64(f"the length of {what}"), what), what)

    def strings(self, count: int, what: str) -> list[str]:
        """Read `count` strings. O(bytes); the hot path of opening a model with 100,000 tokens and merges."""
        data, position, size = self._data, self.position, self.size
        unpack = _U64.unpack_from
        texts: list[str] = []
        for index in range(count):
            start = position + 8
            if start > size:
                raise self.error(f"is cut short in string {index} of {count} of {what}")
            position = start + unpack(data, position)[0]
            if position > size:
                raise self.error(
                    f"claims {position - start} bytes for string {index} of {what}; {size - start} are left"
                )
            try:
                texts.append(data[start:position].decode())
            except UnicodeDecodeError:
                raise self.error(f"has a string that is not UTF-8: number {index} of {what}") from None
        self.position = position
        return texts

    def _text(self, data: bytes, what: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.error(f"has a string that is not UTF-8: {what}") from None
