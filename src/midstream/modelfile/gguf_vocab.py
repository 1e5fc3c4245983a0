"""Owns building a tokenizer from a GGUF's own `tokenizer.ggml.*` fields. Never reads tensors.

Two types: `gpt2` (byte-level BPE with merges) and `llama` (SentencePiece: scores and byte fallback).
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from midstream.errors import ModelFileError
from midstream.modelfile.bpe import (
    byte_level_encoder,
    byte_level_piece,
    sentencepiece_encoder,
    sentencepiece_piece,
)
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.pretokenizers import pre_type
from midstream.modelfile.token_parts import END_TEXTS, AddedToken, TextEncoder, TokenParts


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufVocab:
    """The checked lists of one file. Raises ModelFileError where they contradict each other."""

    def __init__(self, gguf: GgufFile) -> None:
        self._metadata = gguf.metadata
        self._path = gguf.path
        self.model = str(self._get("model", ""))
        self.texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(self._strings("tokens"))]
        self.ids = {text: index for index, text in enumerate(self.texts)}
        if len(self.ids) < len(self.texts):
            twice = next(text for index, text in enumerate(self.texts) if self.ids[text] != index)
            raise self.error(f"has the token {twice!r} twice")
        self.types = self._token_types()
        self.added = tuple(
            AddedToken(text, index, is_special=kind != TokenType.USER_DEFINED)
            for index, (text, kind) in enumerate(zip(self.texts, self.types, strict=True))
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        )

    def error(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self._path} {message}")

    def token_id(self, key: str, default: int | None = None) -> int | None:
        token_id = self._get(f"{key}_token_id", default)
        if token_id is None:
            return None
        if not isinstance(token_id, int) or not 0 <= token_id < len(self.texts):
            raise self.error(f"has {key}_token_id {token_id!r}; ids run from 0 to {len(self.texts) - 1}")
        return token_id

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._get(key, default))

    @property
    def pre(self) -> str:
        return str(self._get("pre", "default"))

    def eos_token_ids(self) -> tuple[int, ...]:
        """The named end first, then every other token that ends a turn."""
        named = [self.token_id(key) for key in ("eos", "eot", "eom")]
        known = [self.ids[text] for text in sorted(END_TEXTS & self.ids.keys())]
        return tuple(dict.fromkeys(token_id for token_id in [*named, *known] if token_id is not None))

    def merges(self) -> list[tuple[str, str]]:
        """Pairs, best first; those that would make an added token out of plain text are left out."""
        added = {token.text for token in self.added}
        pairs: list[tuple[str, str]] = []
        for index, merge in enumerate(self._strings("merges")):
            left, _, right = merge.partition(" ")
            merged = left + right
            if not right or left not in self.ids or right not in self.ids or merged not in self.ids:
                raise self.error(f"has merge {index} {merge!r}, which does not make a token out of two")
            if merged not in added:
                pairs.append((left, right))
        return pairs

    def scores(self) -> Sequence[float]:
        scores = self._get("scores", None)
        if scores is None or len(scores) != len(self.texts) or not hasattr(scores, "tolist"):
            raise self.error(f"has no score for each of its {len(self.texts)} tokens")
        return list(scores.tolist())

    def _token_types(self) -> list[int]:
        types = self._get("token_type", None)
        if types is None:
            types = [TokenType.NORMAL] * len(self.texts)
        elif len(types) != len(self.texts) or not hasattr(types, "tolist"):
            raise self.error(f"has {len(types)} token types for {len(self.texts)} tokens")
        else:
            types = types.tolist()
        for text in END_TEXTS & self.ids.keys():
            types[self.ids[text]] = TokenType.CONTROL
        return list(types)

    def _get(self, key: str, default: Any) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def _strings(self, key: str) -> list[str]:
        strings = self._get(key, None)
        if not isinstance(strings, list):
            raise self.error(f"has no list of strings tokenizer.ggml.{key}; it carries no usable tokenizer")
        return strings


def gguf_parts(gguf: GgufFile) -> TokenParts:
    """Build what the file's tokenizer is made of. Raises ModelFileError for a type that is not served."""
    vocab = GgufVocab(gguf)
    if vocab.model == "gpt2":
        return _byte_level_parts(vocab)
    if vocab.model == "llama":
        return _sentencepiece_parts(vocab)
    raise vocab.error(f"has the tokenizer type {vocab.model!r}; 'gpt2' and 'llama' are supported")


def _byte_level_parts(vocab: GgufVocab) -> TokenParts:
    pre = pre_type(vocab.pre)
    encoder = byte_level_encoder(_mergeable(vocab), vocab.merges(), pre.build(), ignores_merges=pre.ignores_merges)
    added_ids = {token.id for token in vocab.added}
    pieces = [text.encode() if index in added_ids else byte_level_piece(text) for index, text in enumerate(vocab.texts)]
    return _parts(vocab, pieces, encoder, adds_bos=pre.adds_bos, has_space_prefix=False)


def _sentencepiece_parts(vocab: GgufVocab) -> TokenParts:
    has_space_prefix = vocab.flag("add_space_prefix", True)
    mergeable = _mergeable(vocab)
    scores = vocab.scores()
    byte_ids = {index for index, kind in enumerate(vocab.types) if kind == TokenType.BYTE}
    ranked = {text: scores[index] for text, index in mergeable.items() if index not in byte_ids}
    encoder = sentencepiece_encoder(mergeable, ranked, has_space_prefix=has_space_prefix)
    pieces = [sentencepiece_piece(text, is_byte=index in byte_ids) for index, text in enumerate(vocab.texts)]
    for token in vocab.added:
        pieces[token.id] = token.text.encode()
    return _parts(vocab, pieces, encoder, adds_bos=True, has_space_prefix=has_space_prefix)


def _mergeable(vocab: GgufVocab) -> dict[str, int]:
    """Leave the added tokens out: plain text must never become one, not even as a whole word."""
    added = {token.id for token in vocab.added}
    return {text: index for text, index in vocab.ids.items() if index not in added}


def _parts(
    vocab: GgufVocab, pieces: list[bytes], encoder: TextEncoder, *, adds_bos: bool, has_space_prefix: bool
) -> TokenParts:
    is_sentencepiece = vocab.model == "llama"
    return TokenParts(
        pieces=pieces,
        added=vocab.added,
        encode_text=encoder,
        bos_token_id=vocab.token_id("bos", 1 if is_sentencepiece else None),
        eos_token_ids=vocab.eos_token_ids() or ((2,) if is_sentencepiece else ()),
        adds_bos=vocab.flag("add_bos_token", adds_bos),
        has_space_prefix=has_space_prefix,
    )
