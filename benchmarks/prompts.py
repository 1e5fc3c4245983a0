"""Owns the prompts: of an exact length, the same for every server, none twice where nothing may be reused."""

import random
from pathlib import Path
from typing import Any

from benchmarks.models import vocabulary_words

Messages = list[dict[str, str]]

_SYSTEM = "is a helpful assistant who answers at length"
_ASK = "Tell me a long story about these words:"
_TEMPLATE_TOKENS = 14  # ChatML around a system and a user message
_COMMON_WORDS = 2000


class Prompts:
    """Deals prompts from a seed: two of one seed deal the same ones in the same order."""

    def __init__(self, model: Path) -> None:
        self._names, words = vocabulary_words(model)
        self._words = words[:_COMMON_WORDS]
        self.seed(0)

    def seed(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._dealt = self._random.sample(self._names, len(self._names))

    def unique(self, num_tokens: int) -> Messages:
        """Differs from every other from its first word on."""
        return self.headed(self.name(), num_tokens)

    def name(self) -> str:
        """One that no other prompt begins with."""
        return self._dealt.pop()

    def headed(self, name: str, num_tokens: int) -> Messages:
        """A prompt whose system message is `name`'s."""
        system = f"{name} {_SYSTEM}"
        num_words = num_tokens - _TEMPLATE_TOKENS - len(system.split()) - len(_ASK.split()) - 1
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{_ASK} {self.words(num_words)}"},
        ]

    def words(self, count: int) -> str:
        return " ".join(self._random.choices(self._words, k=max(1, count)))


def chat_body(model: str, messages: Messages, max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": messages,
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | fields
