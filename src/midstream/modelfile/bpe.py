"""Owns byte-level and SentencePiece BPE over the `tokenizers` library. Knows no file format."""

from collections.abc import Mapping

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers

from midstream.errors import ModelFileError
from midstream.modelfile.token_parts import Before, TextEncoder

SPACE = "▁"  # SentencePiece writes a space as this


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's printable character of each byte, as a map back: code point → byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: byte for byte in printable}, **{256 + index: byte for index, byte in enumerate(others)}}


BYTE_OF_CHAR = _byte_alphabet()


def byte_level_piece(text: str) -> bytes:
    """Bytes of a byte-level token. A text outside the alphabet stands for itself."""
    try:
        return text.translate(BYTE_OF_CHAR).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def sentencepiece_piece(text: str, *, is_byte: bool) -> bytes:
    """Bytes of a SentencePiece token: `<0x0A>` is one byte, `▁` is a space."""
    if is_byte:
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            raise ModelFileError(f"the byte token {text!r} is not of the form <0x0A>") from None
    return text.replace(SPACE, " ").encode()


def scalar_text(text: str) -> str:
    """`text` with each lone surrogate, which no UTF-8 can carry, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encode_text(fast: FastTokenizer, text: str) -> list[int]:
    """Ids of `text` alone. Of the library's ways the one that lets other threads run meanwhile, and skips offsets."""
    [encoding] = fast.encode_batch_fast([scalar_text(text)], add_special_tokens=False)
    return list(encoding.ids)


def byte_level_encoder(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    *,
    ignores_merges: bool,
) -> TextEncoder:
    """Pieces as `pre_tokenizer` splits them; a byte that the vocabulary lacks is dropped."""
    limit = max(vocab.values(), default=-1) + 1
    missing = [chr(code) for code in BYTE_OF_CHAR if chr(code) not in vocab]
    # A stand-in id keeps the neighbours of a missing byte apart: they must not merge across it.
    stand_ins = {char: limit + index for index, char in enumerate(missing)}
    fast = FastTokenizer(models.BPE(vocab={**vocab, **stand_ins}, merges=merges, ignore_merges=ignores_merges))
    fast.pre_tokenizer = pre_tokenizer

    def encode(text: str, before: Before) -> list[int]:
        ids = encode_text(fast, text)
        return [token_id for token_id in ids if token_id < limit] if missing else ids

    return encode


def sentencepiece_encoder(vocab: dict[str, int], scores: Mapping[str, float], *, has_space_prefix: bool) -> TextEncoder:
    """Whole text as one word, spaces as `▁`, characters without a token as bytes."""
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=merges_from_scores(scores), byte_fallback=True, fuse_unk=False))

    def encode(text: str, before: Before) -> list[int]:
        prefix = SPACE if has_space_prefix and before is not Before.TEXT else ""
        return encode_text(fast, prefix + text.replace(" ", SPACE))

    return encode


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way of making a token out of two, the best scored first.

    llama.cpp merges the neighbours whose union scores best, the leftmost of equals. Of one token's splits the
    one with the longest left part comes first: in a run of equal characters that is the leftmost pair.
    """
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    return [
        (text[:cut], text[cut:])
        for text, _ in ranked
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in scores and text[cut:] in scores
    ]
