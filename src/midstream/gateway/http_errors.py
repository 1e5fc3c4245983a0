"""Owns the OpenAI shape of errors: as a response, as a frame, from any exception. Raises nothing."""

from typing import Any

import orjson
import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from midstream.errors import MidstreamError

log = structlog.get_logger()

_BY_STATUS = {404: "not_found", 405: "method_not_allowed"}


def error_body(error: MidstreamError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def error_response(error: MidstreamError) -> Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(error), error.status, headers)


def error_frame(error: MidstreamError) -> bytes:
    """The error as the last-but-one frame of a stream."""
    return b"data: " + orjson.dumps(error_body(error)) + b"\n\n"


def as_midstream_error(error: Exception) -> MidstreamError:
    """What a client is told of any exception; one of our bugs is logged with its traceback and told as such."""
    if isinstance(error, MidstreamError):
        return error
    log.error("unexpected_error", exc_info=error)
    return MidstreamError("the server made a mistake; its log says more")


def install_handlers(app: FastAPI) -> None:
    @app.exception_handler(MidstreamError)
    async def on_midstream_error(request: Request, error: MidstreamError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        code = _BY_STATUS.get(error.status_code, "invalid_request")
        # Not `request.url`: it is made from the Host header, which may be anything.
        message = f"{request.method} {request.scope['path'][:200]}: {error.detail}"
        body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
        return JSONResponse(body, error.status_code, error.headers)
