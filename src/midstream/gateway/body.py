"""Owns the reading of request bodies: their size, their JSON. Validates no fields."""

from typing import Any

import orjson
from starlette.requests import Request

from midstream.errors import BodyTooLarge, RequestError
from midstream.protocol.levels import levels_of

MAX_DEPTH = 64


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The request's JSON object. Raises BodyTooLarge before the body is read past the limit, else RequestError."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > max_bytes:
            raise _too_large(len(parts), max_bytes)
    return _parse(bytes(parts))


def _too_large(num_bytes: int, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is at least {num_bytes} bytes; the limit is {max_bytes}; send less")


def _parse(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {_cause(data, error)}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body is {_KINDS[type(value)]}; a JSON object is needed", code="invalid_json")
    if any(depth == MAX_DEPTH for depth, _ in enumerate(levels_of(value))):
        raise RequestError(f"the body's JSON is more than {MAX_DEPTH} levels deep; flatten it", code="invalid_json")
    return value


_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


def _cause(data: bytes, error: orjson.JSONDecodeError) -> str:
    """Where and what; of numbers that are none orjson only says that they are unexpected."""
    hint = ""
    if data.startswith((b"NaN", b"Infinity"), error.pos):
        hint = " (NaN and Infinity are no JSON numbers)"
    return f"line {error.lineno}, column {error.colno}: {error.msg}{hint}"
