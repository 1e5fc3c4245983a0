"""Owns `POST /v1/chat/completions`: from a body to a stream or a whole answer. Tokens and tools are others' work."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from midstream.gateway.body import read_object
from midstream.gateway.chat_answer import ChatAnswer
from midstream.gateway.chat_chunks import ChatChunks, usage
from midstream.gateway.chat_request import ChatRequest
from midstream.gateway.choices import run_all
from midstream.gateway.conversation import Conversation
from midstream.gateway.fields import parse
from midstream.gateway.generation import Generation, GenerationRequest
from midstream.gateway.items import Ended, Item
from midstream.gateway.owner import owner_of
from midstream.gateway.request_metrics import RequestMetrics
from midstream.gateway.sampling import sampling_params
from midstream.gateway.sse import until_gone
from midstream.gateway.state import Gateway
from midstream.gateway.tool_plans import template_tools, told_of_mode

router = APIRouter()

_MARKER_TOKENS = 32
"""Tokens at a prompt's end that a reasoning marker may take."""


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Generate an answer to a conversation."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_open()
    body = parse(ChatRequest, await read_object(request, gateway.config.max_body_bytes))
    gateway.check_model(body.model)
    turn = await ChatTurn.begin(gateway, body, owner_of(request))
    if body.stream:
        return gateway.event_stream(turn.frames())
    return JSONResponse(await until_gone(request, turn.whole()))


class ChatTurn:
    """One request, checked. Its choices go to the engine when the first frame is asked for, or the whole."""

    def __init__(
        self,
        gateway: Gateway,
        body: ChatRequest,
        conversation: Conversation,
        generations: list[Generation],
        metrics: RequestMetrics,
    ) -> None:
        self._gateway = gateway
        self._body = body
        self._conversation = conversation
        self._generations = generations
        self._answers = [ChatAnswer() for _ in generations]
        self._id = gateway.new_id("chatcmpl-")
        self._created = int(time.time())
        self._metrics = metrics

    @classmethod
    async def begin(cls, gateway: Gateway, body: ChatRequest, owner: bytes) -> "ChatTurn":
        """Check everything and render the prompt. Raises RequestError."""
        metrics = RequestMetrics(gateway.services.metrics)
        num_characters = sum(message.num_characters for message in body.messages)
        gateway.check_length(num_characters, "messages")
        plan = await gateway.tool_plans.plan(body)
        tools = template_tools(plan)
        messages = told_of_mode([message.for_template() for message in body.messages], plan)
        conversation = Conversation(owner, messages, tools, body.chat_template_kwargs, num_characters)
        token_ids = await gateway.conversations.prompt(conversation)
        plan = gateway.tool_plans.begun(plan, gateway.tokenizer.decode(token_ids[-_MARKER_TOKENS:], skip_special=False))
        generations = []
        for index in range(body.n):
            sampling = sampling_params(
                body, num_prompt_tokens=len(token_ids), max_model_len=gateway.max_model_len, choice=index
            )
            request = GenerationRequest(token_ids, sampling, owner, plan, tools, gateway.config.request_timeout_s)
            generations.append(Generation(gateway.services, request))
        return cls(gateway, body, conversation, generations, metrics)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The stream's frames, without the `[DONE]`."""
        include_usage = self._body.include_usage
        chunks = ChatChunks(
            completion_id=self._id,
            created=self._created,
            model=self._gateway.model_name,
            include_usage=include_usage,
            new_call_id=self._gateway.tool_plans.new_call_id,
        )
        async with aclosing(self._items()) as items:
            async for choice, item in items:
                yield chunks.frame(choice, item)
        if include_usage:
            yield chunks.usage(self._counts())

    async def whole(self) -> dict[str, Any]:
        """The non-streamed response."""
        async with aclosing(self._items()) as items:
            async for _ in items:
                pass
        new_call_id = self._gateway.tool_plans.new_call_id
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._gateway.model_name,
            "choices": [answer.body(i, new_call_id) for i, answer in enumerate(self._answers)],
            "usage": usage(self._counts()),
        }

    async def _items(self) -> AsyncGenerator[tuple[int, Item], None]:
        max_tokens = self._body.wanted_tokens or 0
        async with aclosing(run_all(self._generations, self._metrics, max_tokens=max_tokens)) as items:
            async for choice, item in items:
                self._answers[choice].add(item)
                if isinstance(item, Ended):
                    # Before the client knows that it is over: its next turn may come at once.
                    self._keep(choice)
                yield choice, item

    def _keep(self, choice: int) -> None:
        kept = self._answers[choice].kept()
        if kept is not None:
            self._gateway.conversations.keep(self._conversation, kept, self._generations[choice].token_ids)

    def _counts(self) -> list[Any]:
        return [answer.ended.counts for answer in self._answers if answer.ended is not None]
