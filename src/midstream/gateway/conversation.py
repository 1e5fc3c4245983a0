"""Owns the way from messages to prompt tokens, through the transcript store where it knows them. Generates nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from midstream.gateway.transcripts import TranscriptStore
from midstream.modelfile.chat_template import ChatTemplate
from midstream.modelfile.continuation import continuation_ids
from midstream.modelfile.tokenizer import Tokenizer
from midstream.telemetry.metrics import Metrics

# Longer texts are tokenised beside the event loop: at about 1 MB/s they would hold up every stream.
_INLINE_CHARACTERS = 16_384


@dataclass(frozen=True)
class Conversation:
    """What a turn's prompt is made from, and what its transcript will be filed under."""

    owner: bytes
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]


class Conversations:
    """One per gateway."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, store: TranscriptStore, metrics: Metrics) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._store = store
        self._metrics = metrics

    async def prompt(self, conversation: Conversation) -> list[int]:
        """The prompt's tokens. Raises RequestError where the template refuses the messages."""
        num_characters = sum(_size(message) for message in conversation.messages)
        if num_characters <= _INLINE_CHARACTERS:
            return self._prompt(conversation)
        return await asyncio.to_thread(self._prompt, conversation)

    def render(self, messages: list[dict[str, Any]]) -> list[int]:
        """The tokens of messages without tools, as a new conversation."""
        return self._template.encode_chat(self._tokenizer, messages)

    def keep(self, conversation: Conversation, answer: dict[str, Any], token_ids: Sequence[int]) -> None:
        """File a finished turn: the next one that begins with it goes on from exactly these tokens."""
        if token_ids[-1] not in self._tokenizer.eos_token_ids:
            token_ids = [*token_ids, self._tokenizer.eos_token_ids[0]]
        key = [conversation.tools, conversation.template_kwargs]
        self._store.put(conversation.owner, key, [*conversation.messages, answer], token_ids)

    def _prompt(self, conversation: Conversation) -> list[int]:
        known = self._continued(conversation)
        if known is not None:
            return known
        return self._template.encode_chat(
            self._tokenizer, conversation.messages, conversation.tools, **conversation.template_kwargs
        )

    def _continued(self, conversation: Conversation) -> list[int] | None:
        messages = conversation.messages
        if not any(message["role"] == "assistant" for message in messages[:-1]):
            return None
        key = [conversation.tools, conversation.template_kwargs]
        found = self._store.find(conversation.owner, key, messages[:-1])
        if found is not None:
            before = messages[: found.num_messages]
            added = continuation_ids(
                self._template,
                self._tokenizer,
                before,
                messages,
                conversation.tools,
                **conversation.template_kwargs,
            )
            if added is not None:
                self._metrics.transcript_hits.inc()
                return [*found.token_ids, *added]
        self._metrics.transcript_misses.inc()
        return None


def _size(message: dict[str, Any]) -> int:
    content = message.get("content") or ""
    if isinstance(content, str):
        return len(content)
    return sum(len(str(part.get("text", ""))) for part in content)
