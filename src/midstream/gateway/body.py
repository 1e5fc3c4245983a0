"""Owns the reading of request bodies: their size, their JSON. Validates no fields."""

from typing import Any

import orjson
from starlette.requests import Request

from midstream.errors import BodyTooLarge, RequestError

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
        raise RequestError(f"the body is a JSON {type(value).__name__}; an object is needed", code="invalid_json")
    depth = _depth(value)
    if depth > MAX_DEPTH:
        raise RequestError(f"the body's JSON is more than {MAX_DEPTH} levels deep; flatten it", code="invalid_json")
    return value


def _cause(data: bytes, error: orjson.JSONDecodeError) -> str:
    """orjson names line and column; of numbers that are none it only says that they are unexpected."""
    for word in (b"NaN", b"Infinity"):
        if word in data:
            return f"{error.msg} (NaN and Infinity are no JSON numbers)"
    return str(error.msg)


def _depth(value: Any) -> int:
    """Levels of the value, counted without recursion up to just over the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        children: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                children += item.values()
            elif isinstance(item, list):
                children += item
        level, depth = children, depth + 1
    return depth
