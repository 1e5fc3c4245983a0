"""Owns tokenizers that tests make out of the embedded model's."""

from collections.abc import Sequence
from dataclasses import replace

from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.gguf_vocab import gguf_parts
from midstream.modelfile.resolve import resolve
from midstream.modelfile.token_parts import AddedToken
from midstream.modelfile.tokenizer import Tokenizer


def with_added_tokens(texts: Sequence[str], *, is_special: bool = False) -> Tokenizer:
    """The embedded model's tokenizer with tokens more, as Qwen's has `<tool_call>`."""
    parts = gguf_parts(GgufFile.open(resolve().path))
    first = len(parts.pieces)
    added = [AddedToken(text, first + i, is_special) for i, text in enumerate(texts)]
    pieces = [*parts.pieces, *(text.encode() for text in texts)]
    return Tokenizer(replace(parts, pieces=pieces, added=(*parts.added, *added)))
