"""Owns `POST /v1/completions`: plain prompts, streamed and whole. Tools belong to chat."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from midstream.errors import RequestError
from midstream.gateway.body import read_object
from midstream.gateway.chat_chunks import usage
from midstream.gateway.choices import run_all
from midstream.gateway.completion_request import CompletionRequest
from midstream.gateway.fields import parse
from midstream.gateway.generation import Generation, GenerationRequest
from midstream.gateway.items import Ended, Item
from midstream.gateway.offload import sized
from midstream.gateway.owner import owner_of
from midstream.gateway.request_metrics import RequestMetrics
from midstream.gateway.sampling import sampling_params
from midstream.gateway.sse import until_gone
from midstream.gateway.state import Gateway
from midstream.messages import TextDelta

router = APIRouter()

MAX_CHOICES = 64


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue one or several prompts."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_open()
    body = parse(CompletionRequest, await read_object(request, gateway.config.max_body_bytes))
    gateway.check_model(body.model)
    run = await CompletionRun.begin(gateway, body, owner_of(request))
    if body.stream:
        return gateway.event_stream(run.frames())
    return JSONResponse(await until_gone(request, run.whole()))


class CompletionRun:
    """One request, checked. Its choices (prompts x n, prompt by prompt) go to the engine with the first frame."""

    def __init__(
        self, gateway: Gateway, body: CompletionRequest, generations: list[Generation], metrics: RequestMetrics
    ) -> None:
        self._gateway = gateway
        self._body = body
        self._generations = generations
        self._head = {
            "id": gateway.new_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": gateway.model_name,
        }
        self._texts: list[list[str]] = [[] for _ in generations]
        self._ended: dict[int, Ended] = {}
        self._metrics = metrics

    @classmethod
    async def begin(cls, gateway: Gateway, body: CompletionRequest, owner: bytes) -> "CompletionRun":
        metrics = RequestMetrics(gateway.services.metrics)
        prompts = body.prompts()
        if not prompts or len(prompts) * body.n > MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with n = {body.n}; 1 to {MAX_CHOICES} choices in all", param="prompt"
            )
        generations = []
        for prompt in prompts:
            token_ids = await _token_ids(gateway, prompt)
            for choice in range(body.n):
                sampling = sampling_params(
                    body, num_prompt_tokens=len(token_ids), max_model_len=gateway.max_model_len, choice=choice
                )
                request = GenerationRequest(token_ids, sampling, owner, deadline_s=gateway.config.request_timeout_s)
                generations.append(Generation(gateway.services, request))
        return cls(gateway, body, generations, metrics)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        tail: dict[str, Any] = {"usage": None} if self._body.include_usage else {}
        async with aclosing(self._items()) as items:
            async for choice, item in items:
                yield self._frame({"choices": [_choice(choice, _text(item), self._ended.get(choice))], **tail})
        if self._body.include_usage:
            yield self._frame({"choices": [], "usage": self._usage()})

    async def whole(self) -> dict[str, Any]:
        async with aclosing(self._items()) as items:
            async for _ in items:
                pass
        choices = [_choice(i, "".join(texts), self._ended[i]) for i, texts in enumerate(self._texts)]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def _items(self) -> AsyncGenerator[tuple[int, Item], None]:
        max_tokens = self._body.wanted_tokens or 0
        async with aclosing(run_all(self._generations, self._metrics, max_tokens=max_tokens)) as items:
            async for choice, item in items:
                if isinstance(item, Ended):
                    self._ended[choice] = item
                self._texts[choice].append(_text(item))
                yield choice, item

    def _usage(self) -> dict[str, Any]:
        """Over all prompts: OpenAI counts each prompt once, whatever n is."""
        by_prompt = [
            usage([self._ended[i].counts for i in range(start, start + self._body.n)])
            for start in range(0, len(self._generations), self._body.n)
        ]
        total = by_prompt[0]
        for other in by_prompt[1:]:
            for name in ("prompt_tokens", "completion_tokens", "total_tokens", "computed_tokens"):
                total[name] += other[name]
            total["prompt_tokens_details"]["cached_tokens"] += other["prompt_tokens_details"]["cached_tokens"]
        return total

    def _frame(self, body: dict[str, Any]) -> bytes:
        return b"data: " + orjson.dumps(self._head | body) + b"\n\n"


async def _token_ids(gateway: Gateway, prompt: str | list[int]) -> list[int]:
    tokenizer = gateway.tokenizer
    if isinstance(prompt, str):
        gateway.check_length(len(prompt), "prompt")
        token_ids = tokenizer.with_bos(await sized(len(prompt), lambda: tokenizer.encode_frames(prompt)))
    else:
        token_ids = prompt
    if not token_ids:
        raise RequestError("the prompt is empty; give at least one token", param="prompt")
    too_high = next((token_id for token_id in token_ids if token_id >= tokenizer.vocab_size), None)
    if too_high is not None:
        raise RequestError(f"token {too_high} is not in the vocabulary of {tokenizer.vocab_size}", param="prompt")
    return token_ids


def _text(item: Item) -> str:
    return item.text if isinstance(item, TextDelta) else ""


def _choice(index: int, text: str, ended: Ended | None) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": ended.reason.value if ended is not None else None,
    }
