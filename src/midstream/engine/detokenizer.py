"""Owns the bytes of a sequence's text that are not yet whole characters. Never looks at what the text says."""

import codecs
from collections.abc import Sequence


class Detokenizer:
    """Turns tokens into text, one at a time, in O(1) a token: exact bytes through an incremental UTF-8 decoder.

    A character that is cut between two tokens is held back until it is whole.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def is_empty(self) -> bool:
        """No part of a character is held back."""
        return not self._decoder.getstate()[0]

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._token_bytes[token_id])

    def finish(self) -> str:
        """What is left of a character that never became whole, as U+FFFD; what comes next begins anew."""
        return self._decoder.decode(b"", final=True)
