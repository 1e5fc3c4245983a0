"""Owns the exact tokens of finished turns, so that the next turn goes on from them. Renders nothing.

A client that keeps only text sends back less than was generated: calls, results and the model's own spelling of
its tokens are gone. The store maps (owner, hash of the messages up to an assistant's) to those tokens.
"""

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    num_messages: int
    """How many of the messages the tokens stand for; the last of them is an assistant's."""
    token_ids: list[int]


class TranscriptStore:
    """At most `max_tokens` tokens in all; the turn that was used longest ago goes first."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._turns: OrderedDict[bytes, array[int]] = OrderedDict()

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def put(self, owner: bytes, tools: Any, messages: Sequence[Message], token_ids: Sequence[int]) -> None:
        """Keep the tokens of a conversation whose last message is the answer just given."""
        if len(token_ids) > self._max_tokens:
            return
        key = _chain(owner, tools, messages)[-1]
        self._drop(key)
        self._turns[key] = array("I", token_ids)
        self._num_tokens += len(token_ids)
        while self._num_tokens > self._max_tokens:
            self._drop(next(iter(self._turns)))

    def find(self, owner: bytes, tools: Any, messages: Sequence[Message]) -> Found | None:
        """The longest known beginning of the conversation. O(size of the messages)."""
        keys = _chain(owner, tools, messages)
        for index in range(len(messages) - 1, -1, -1):
            if messages[index]["role"] == "assistant" and keys[index] in self._turns:
                self._turns.move_to_end(keys[index])
                return Found(index + 1, list(self._turns[keys[index]]))
        return None

    def _drop(self, key: bytes) -> None:
        dropped = self._turns.pop(key, None)
        self._num_tokens -= len(dropped) if dropped is not None else 0


def _chain(owner: bytes, tools: Any, messages: Sequence[Message]) -> list[bytes]:
    """The key after each message: every key covers all before it."""
    key = hashlib.sha256(owner + _canonical(tools)).digest()
    keys = []
    for message in messages:
        key = hashlib.sha256(key + _canonical(_essence(message))).digest()
        keys.append(key)
    return keys


def _essence(message: Message) -> list[Any]:
    """What makes two messages the same, however a client writes them back."""
    content = message.get("content") or ""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    calls = [_call_essence(call["function"]) for call in message.get("tool_calls") or ()]
    return [message["role"], content, calls]


def _call_essence(function: Mapping[str, Any]) -> list[Any]:
    arguments = function["arguments"]
    try:
        return [function["name"], json.loads(arguments)]
    except (ValueError, RecursionError):
        return [function["name"], arguments]


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=True).encode()
