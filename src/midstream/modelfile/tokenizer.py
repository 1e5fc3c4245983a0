"""Owns text to ids and ids to bytes for one model. Never adds a token that it was not asked for.

Three ways in, by trust. `encode`, for payloads: no added token is ever recognised. `encode_frames`, for our
own frames: all are. `encode_escaped`, for a rendered template: the template's are, a user's are not.
"""

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from midstream.modelfile.folder_vocab import folder_parts
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.gguf_vocab import gguf_parts
from midstream.modelfile.resolve import ModelFiles, ModelKind
from midstream.modelfile.token_parts import Before, TokenParts, added_pattern


class Tokenizer:
    """Immutable after construction; safe to share between threads."""

    def __init__(self, parts: TokenParts) -> None:
        self._encode_text = parts.encode_text
        self._pieces = parts.pieces
        self._has_space_prefix = parts.has_space_prefix
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.add_bos = parts.adds_bos
        self.special_ids = frozenset(token.id for token in parts.added if token.is_special)
        # White space that has a token of its own cannot forge a frame: it is text, and split off everywhere.
        blank = [token for token in parts.added if token.text.isspace()]
        frames = [token for token in parts.added if not token.text.isspace()]
        self.added_tokens: dict[str, int] = {token.text: token.id for token in frames}
        self.special_tokens: dict[str, int] = {token.text: token.id for token in parts.added if token.is_special}
        self._ids = {token.text: token.id for token in parts.added}
        self._blank_pattern = added_pattern(blank)
        self._frame_pattern = added_pattern(parts.added)

    @classmethod
    def load(cls, files: ModelFiles, gguf: GgufFile | None = None) -> "Tokenizer":
        """Build the tokenizer of `files`. An opened `gguf` saves reading its header again."""
        if files.kind is ModelKind.FOLDER:
            return cls.from_folder(files.path)
        return cls.from_gguf(gguf or GgufFile.open(files.path))

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> "Tokenizer":
        return cls(gguf_parts(gguf))

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        return cls(folder_parts(folder))

    @property
    def vocab_size(self) -> int:
        """One more than the highest id; a model may have more rows than that."""
        return len(self._pieces)

    @property
    def bos_token_text(self) -> str:
        return "" if self.bos_token_id is None else self._pieces[self.bos_token_id].decode()

    @property
    def eos_token_text(self) -> str:
        return self._pieces[self.eos_token_ids[0]].decode() if self.eos_token_ids else ""

    # --- text to ids ---

    def encode(self, text: str, *, at_start: bool = True) -> list[int]:
        """Ids of plain text: no added token is recognised in it, no BOS.

        `at_start` False: the text continues ordinary text, so that SentencePiece puts no space before it.
        """
        return self._join(self._split(text, self._blank_pattern, ""), "", at_start)

    def encode_frames(self, text: str, *, at_start: bool = True) -> list[int]:
        """Ids of text whose added and special tokens count as such. No BOS is added."""
        return self._join(self._split(text, self._frame_pattern, ""), "", at_start)

    def encode_escaped(self, text: str, sentinel: str, *, at_start: bool = True) -> list[int]:
        """`encode_frames`, with `sentinel` dropped after the added tokens are split off and before BPE.

        A sentinel inside an added token's text, or right after one of a single character, makes it plain;
        anywhere else it changes nothing.
        """
        return self._join(self._split(text, self._frame_pattern, sentinel), sentinel, at_start)

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """`ids` with exactly one BOS in front where the model wants one; as they are where it does not."""
        if not self.add_bos or self.bos_token_id is None:
            return list(ids)
        start = 0
        while start < len(ids) and ids[start] == self.bos_token_id:
            start += 1
        return [self.bos_token_id, *ids[start:]]

    def _split(self, text: str, pattern: re.Pattern[str] | None, sentinel: str) -> Iterator[str | int]:
        """Yield pieces of plain text and the ids of the added tokens between them, in order."""
        if pattern is None:
            yield text
            return
        end = 0
        for match in pattern.finditer(text):
            word = match[match.lastindex or 0]
            if len(word) == 1 and sentinel and text.startswith(sentinel, match.end(match.lastindex or 0)):
                continue
            yield text[end : match.start()]
            yield self._ids[word]
            end = match.end()
        yield text[end:]

    def _join(self, parts: Iterator[str | int], sentinel: str, at_start: bool) -> list[int]:
        ids: list[int] = []
        before = Before.START if at_start else Before.TEXT
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
                before = Before.ADDED_TOKEN
                continue
            text = part.replace(sentinel, "") if sentinel else part
            if text:
                ids.extend(self._encode_text(text, before))
                before = Before.TEXT
        return ids

    # --- ids to text ---

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """Exact bytes that the token stands for; b"" for a special token unless `special` asks for its text.

        One token's bytes need not be whole UTF-8 characters; a SentencePiece token keeps its leading space.
        """
        if not special and token_id in self.special_ids:
            return b""
        return self._pieces[token_id]

    def all_token_bytes(self, shown: Set[int] = frozenset()) -> list[bytes]:
        """`token_bytes` of every id, in order; the special ones in `shown` have their text.

        O(vocab_size): for a grammar or a detokenizer to copy.
        """
        return [self.token_bytes(token_id, special=token_id in shown) for token_id in range(self.vocab_size)]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of a whole sequence; bytes that are no UTF-8 become U+FFFD.

        SentencePiece models put a space before the first word, which is dropped again here: decode from a
        sequence's start only, and join `token_bytes` for text in its middle.
        """
        data = b"".join(self.token_bytes(token_id, special=not skip_special) for token_id in ids)
        if self._has_space_prefix:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids
