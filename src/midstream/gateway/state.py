"""Owns what all routes of one gateway share. Built once, in `cli`."""

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import cached_property

from midstream.config import Config
from midstream.errors import ContextLengthExceeded, Draining, ModelNotFound
from midstream.gateway.conversation import Conversations
from midstream.gateway.fields import shortened
from midstream.gateway.generation import Services
from midstream.gateway.sse import EventStream
from midstream.gateway.tool_plans import ToolPlans
from midstream.modelfile.tokenizer import Tokenizer

_LAST_WORDS_S = 5.0


@dataclass
class Gateway:
    config: Config
    model_name: str
    """What clients call the model."""
    model_root: str
    services: Services
    conversations: Conversations
    tool_plans: ToolPlans
    tokenizer: Tokenizer
    new_id: Callable[[str], str]
    """Makes an id that begins with the given prefix."""
    created: int = field(default_factory=lambda: int(time.time()))
    is_draining: bool = False

    @property
    def max_model_len(self) -> int:
        hello = self.services.engine.hello
        assert hello is not None, "asked before `check_open`"
        return hello.max_model_len

    def event_stream(self, frames: AsyncGenerator[bytes, None]) -> EventStream:
        """A response of `frames` under this server's limits."""
        config = self.config
        # The error object of a missed deadline still has to get out.
        limit_s = config.request_timeout_s + _LAST_WORDS_S
        return EventStream(frames, keep_alive_s=config.keep_alive_s, limit_s=limit_s)

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFound for a model that is not served here."""
        if name is not None and name != self.model_name:
            raise ModelNotFound(
                f"no model {shortened(name)!r} here; this server has {self.model_name!r}", param="model"
            )

    def check_length(self, num_characters: int, param: str) -> None:
        """Raises ContextLengthExceeded for a text that is too long however it is tokenised: no time goes into it."""
        least = num_characters // self._max_token_characters
        if least >= self.max_model_len:
            raise ContextLengthExceeded(
                f"the prompt is at least {least} tokens; the limit is {self.max_model_len - 1}; shorten it or start "
                "the server with a larger --max-model-len",
                param=param,
            )

    def check_open(self) -> None:
        """Raises when no new work is taken: Draining, EngineLoading or EngineDied."""
        if self.is_draining:
            raise Draining("the server is shutting down; try another one, or again later")
        self.services.engine.check_ready()

    @cached_property
    def _max_token_characters(self) -> int:
        tokenizer = self.tokenizer
        return max(len(tokenizer.token_bytes(token_id, special=True)) for token_id in range(tokenizer.vocab_size))
