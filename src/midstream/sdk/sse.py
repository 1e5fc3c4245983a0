"""Owns the reading of server-sent events: bytes in, `data` payloads out. Never does I/O, never reads them.

Source: WHATWG HTML, section 9.2.6, "Interpreting an event stream".
"""

import re

from midstream.errors import ProtocolError

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class SseParser:
    """One stream's parser. However the bytes are cut, the same payloads come out.

    Lines end in LF, CRLF or CR; comments and the fields `event`, `id` and `retry` are skipped;
    several `data` lines of one event are joined with a line feed. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, max_event_bytes: int = 16 * 2**20) -> None:
        self._max_event_bytes = max_event_bytes
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._num_data_bytes = 0
        self._num_bytes = 0
        self._ended_in_cr = False
        self._is_first_line = True

    def feed(self, data: bytes) -> list[str]:
        """Return the payloads that `data` completes. O(len(data)), amortised.

        Raises ProtocolError when an event grows past `max_event_bytes`.
        """
        self._num_bytes += len(data)
        if self._ended_in_cr and data:
            data = data.removeprefix(b"\n")  # the second half of a CRLF that was cut in two
            self._ended_in_cr = False
        if not data:
            return []
        self._ended_in_cr = data.endswith(b"\r")
        first, *rest = _LINE_END.split(data)
        self._tail += first
        payloads: list[str] = []
        for piece in rest:
            payloads += self._end_line()
            self._tail += piece
        self._check_size()
        return payloads

    def finish(self) -> list[str]:
        """Return what the end of the stream leaves behind: an event that lacks its blank line.

        The standard drops it; some servers end so, and whoever parses the payload sees whether it is whole.
        """
        payloads = self._end_line() if self._tail else []
        return payloads + self._dispatch()

    def _end_line(self) -> list[str]:
        line = bytes(self._tail)
        self._tail.clear()
        if self._is_first_line:
            line = line.removeprefix(_BOM)
            self._is_first_line = False
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._num_data_bytes += len(value) + 1
        return []

    def _dispatch(self) -> list[str]:
        payload = b"\n".join(self._data)
        self._data.clear()
        self._num_data_bytes = 0
        return [payload.decode("utf-8", "replace")] if payload else []

    def _check_size(self) -> None:
        num_bytes = len(self._tail) + self._num_data_bytes
        if num_bytes > self._max_event_bytes:
            raise ProtocolError(
                f"an event of the stream has {num_bytes} bytes; the limit is {self._max_event_bytes}",
                offset=self._num_bytes,
            )
