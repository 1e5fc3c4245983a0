"""Owns the way from messages to prompt tokens, through the transcript store where it knows them. Generates nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.gateway.offload import sized
from midstream.gateway.transcripts import Found, TranscriptStore
from midstream.modelfile.chat_template import ChatTemplate
from midstream.modelfile.continuation import continuation_ids
from midstream.modelfile.tokenizer import Tokenizer
from midstream.telemetry.metrics import Metrics

# What a message or a tool costs besides its text, in characters' worth of time.
_PER_ENTRY = 256


@dataclass(frozen=True)
class Conversation:
    """What a turn's prompt is made from, and what its transcript will be filed under."""

    owner: bytes
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]
    num_characters: int
    """Of the messages' texts."""

    @property
    def key(self) -> list[Any]:
        """What a transcript depends on besides its owner and its messages."""
        return [self.tools, self.template_kwargs]


class Conversations:
    """One per gateway."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, store: TranscriptStore, metrics: Metrics) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._store = store
        self._metrics = metrics

    async def prompt(self, conversation: Conversation) -> list[int]:
        """The prompt's tokens. Raises RequestError where the template refuses the messages."""
        found = self._find(conversation)
        num_entries = len(conversation.messages) + len(conversation.tools or ())
        cost = conversation.num_characters + _PER_ENTRY * num_entries
        token_ids, is_hit = await sized(cost, lambda: self._prompt(conversation, found))
        if is_hit:
            self._metrics.transcript_hits.inc()
        elif _goes_on(conversation.messages):
            self._metrics.transcript_misses.inc()
        return token_ids

    async def render(self, messages: list[dict[str, Any]], num_characters: int) -> list[int]:
        """The tokens of messages without tools, as a new conversation."""
        cost = num_characters + _PER_ENTRY * len(messages)
        return await sized(cost, lambda: self._template.encode_chat(self._tokenizer, messages))

    def keep(self, conversation: Conversation, answer: dict[str, Any], token_ids: Sequence[int]) -> None:
        """File a finished turn: the next one that begins with it goes on from exactly these tokens."""
        if token_ids[-1] not in self._tokenizer.eos_token_ids:
            token_ids = [*token_ids, self._tokenizer.eos_token_ids[0]]
        self._store.put(conversation.owner, conversation.key, [*conversation.messages, answer], token_ids)

    def _find(self, conversation: Conversation) -> Found | None:
        if not _goes_on(conversation.messages):
            return None
        return self._store.find(conversation.owner, conversation.key, conversation.messages[:-1])

    def _prompt(self, conversation: Conversation, found: Found | None) -> tuple[list[int], bool]:
        """The tokens, and whether they go on from those that were found."""
        messages, tools, kwargs = conversation.messages, conversation.tools, conversation.template_kwargs
        if found is not None:
            before = messages[: found.num_messages]
            added = continuation_ids(self._template, self._tokenizer, before, messages, tools, **kwargs)
            if added is not None:
                return [*found.token_ids, *added], True
        return self._template.encode_chat(self._tokenizer, messages, tools, **kwargs), False


def _goes_on(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there is an earlier answer in it."""
    return any(message["role"] == "assistant" for message in messages[:-1])
