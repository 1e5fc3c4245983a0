"""Owns what any tokenizer is made of, whatever file it came from. Encodes and decodes nothing itself."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

# Tokens that end a turn; files often name one of several, or forget to mark them as special.
END_TEXTS = frozenset(("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>"))


class Before(Enum):
    """What stands before a piece of text: SentencePiece puts a space before a first word."""

    START = "start"
    ADDED_TOKEN = "added token"  # noqa: S105 - no password
    TEXT = "text"


class TextEncoder(Protocol):
    """Plain text to ids, with no added token known to it."""

    def __call__(self, text: str, before: Before) -> list[int]: ...


@dataclass(frozen=True)
class AddedToken:
    """A token that is written out in text and never the result of a merge."""

    text: str
    id: int
    is_special: bool
    strips_left: bool = False
    strips_right: bool = False
    is_single_word: bool = False

    @property
    def pattern(self) -> str:
        word = re.escape(self.text)
        if self.is_single_word:
            word = rf"(?<!\w){word}(?!\w)"
        return (r"\s*" if self.strips_left else "") + f"({word})" + (r"\s*" if self.strips_right else "")

    @property
    def is_plain(self) -> bool:
        return not (self.strips_left or self.strips_right or self.is_single_word)


@dataclass(frozen=True)
class TokenParts:
    """`pieces[id]`: the exact bytes of a token, a special token's text included; b"" in a gap of the ids."""

    pieces: list[bytes]
    added: tuple[AddedToken, ...]
    encode_text: TextEncoder
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool
    has_space_prefix: bool


def added_pattern(added: Sequence[AddedToken]) -> re.Pattern[str] | None:
    """Match any of `added`, the leftmost first, then the longest; the matched group is the token's text."""
    longest_first = sorted(added, key=lambda token: len(token.text), reverse=True)
    if not longest_first:
        return None
    if all(token.is_plain for token in longest_first):
        # One group lets `re` share the prefixes: half the time, and more with hundreds of tokens.
        return re.compile("(" + "|".join(re.escape(token.text) for token in longest_first) + ")")
    return re.compile("|".join(token.pattern for token in longest_first))
