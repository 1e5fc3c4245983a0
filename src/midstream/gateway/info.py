"""Owns the routes that generate nothing: models, version, health, metrics, tokenize, detokenize."""

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from midstream import __version__
from midstream.errors import RequestError
from midstream.gateway.body import read_object
from midstream.gateway.completion_request import DetokenizeRequest, TokenizeRequest
from midstream.gateway.engine_client import EngineState
from midstream.gateway.fields import parse
from midstream.gateway.offload import sized
from midstream.gateway.state import Gateway

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """200 when a request would be taken; 503 while the model loads, the engine is down or the server drains."""
    gateway: Gateway = request.app.state.gateway
    state = gateway.services.engine.state
    is_open = state is EngineState.READY and not gateway.is_draining
    status = "draining" if gateway.is_draining else state.value
    return JSONResponse({"status": "ok" if is_open else status}, 200 if is_open else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    gateway: Gateway = request.app.state.gateway
    return Response(gateway.services.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(request.app.state.gateway)]}


@router.get("/v1/models/{model_id:path}")
async def model(request: Request, model_id: str) -> dict[str, Any]:
    gateway: Gateway = request.app.state.gateway
    gateway.check_model(model_id)
    return _model(gateway)


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """The tokens of a prompt or of a conversation, as vLLM gives them."""
    gateway: Gateway = request.app.state.gateway
    body = parse(TokenizeRequest, await read_object(request, gateway.config.max_body_bytes))
    gateway.check_model(body.model)
    token_ids = await _tokens(gateway, body)
    answer: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": _max_model_len(gateway),
        "tokens": token_ids,
    }
    if body.return_token_strs:
        tokenizer = gateway.tokenizer
        answer["token_strs"] = [
            tokenizer.token_bytes(token_id, special=True).decode("utf-8", "replace") for token_id in token_ids
        ]
    return JSONResponse(answer)


@router.post("/detokenize")
async def detokenize(request: Request) -> dict[str, str]:
    gateway: Gateway = request.app.state.gateway
    body = parse(DetokenizeRequest, await read_object(request, gateway.config.max_body_bytes))
    gateway.check_model(body.model)
    size = gateway.tokenizer.vocab_size
    too_high = next((token_id for token_id in body.tokens if token_id >= size), None)
    if too_high is not None:
        raise RequestError(f"token {too_high} is not in the vocabulary of {size}", param="tokens")
    return {"prompt": gateway.tokenizer.decode(body.tokens, skip_special=False)}


async def _tokens(gateway: Gateway, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.messages is not None:
        messages = [message.for_template() for message in body.messages]
        num_characters = sum(message.num_characters for message in body.messages)
        return await gateway.conversations.render(messages, num_characters)
    tokenizer, prompt = gateway.tokenizer, body.prompt or ""
    token_ids = await sized(len(prompt), lambda: tokenizer.encode_frames(prompt))
    return tokenizer.with_bos(token_ids) if body.add_special_tokens else token_ids


def _model(gateway: Gateway) -> dict[str, Any]:
    return {
        "id": gateway.model_name,
        "object": "model",
        "created": gateway.created,
        "owned_by": "midstream",
        "root": gateway.model_root,
        "max_model_len": _max_model_len(gateway),
    }


def _max_model_len(gateway: Gateway) -> int | None:
    """None until the engine has loaded for the first time."""
    hello = gateway.services.engine.hello
    return hello.max_model_len if hello is not None else None
