"""Owns which of the last tokens hold the text that the parser has not settled. Reads no text itself."""

import codecs


class UnreadTokens:
    """Tokens with the place where the text of each ends. A grammar that begins late is fed them.

    The text may lag behind the tokens: half a character, or what may be the beginning of a stop string.
    """

    def __init__(self, token_bytes: list[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokens: list[tuple[int, int]] = []
        self._num_decoded = 0
        self._num_read = 0

    @property
    def token_ids(self) -> list[int]:
        return [token_id for token_id, _ in self._tokens]

    def after_last(self, token_ids: frozenset[int]) -> list[int]:
        """The tokens behind the last one of `token_ids`; all of them where there is none."""
        kept = self.token_ids
        last = max((i for i, token_id in enumerate(kept) if token_id in token_ids), default=-1)
        return kept[last + 1 :]

    def add(self, token_id: int, text: str) -> None:
        """Take a token, and the text that the parser has read since the one before."""
        self._num_decoded += len(self._decoder.decode(self._token_bytes[token_id]))
        self._num_read += len(text)
        self._tokens.append((token_id, self._num_decoded))

    def keep_last(self, num_characters: int) -> None:
        """Forget the tokens that end before the last `num_characters` read. O(tokens kept and forgotten)."""
        start = self._num_read - num_characters
        self._tokens = [(token_id, end) for token_id, end in self._tokens if end > start]
