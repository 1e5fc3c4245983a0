"""Owns what becomes of a tool's return value or exception. Runs nothing."""

import math
from typing import Any

import msgspec
from pydantic import BaseModel

from midstream.protocol.payloads import Error, ErrorCode, Result
from midstream.tools.limits import HostLimits

Outcome = Result | Error


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


_json = msgspec.json.Encoder(decimal_format="number", enc_hook=_plain)


def outcome_of_value(value: Any, limits: HostLimits) -> Outcome:
    """A str as text, everything else as compact JSON; an error where it has none or is over the limit."""
    if isinstance(value, str):
        result = Result("text/plain", value.encode(errors="replace"))
    else:
        try:
            result = Result("application/json", _encode(value))
        except Exception as fault:  # a tool's own objects may raise anything here
            return Error(ErrorCode.TOOL_FAILED, _cut(f"the result is not JSON: {fault}", limits))
    if len(result.content) > limits.max_result_bytes:
        return Error(
            ErrorCode.OVER_LIMIT,
            f"the result is {len(result.content)} bytes; the limit is {limits.max_result_bytes}",
        )
    return result


def outcome_of_exception(fault: BaseException, limits: HostLimits) -> Error:
    """`TypeName: message`, never a traceback: it becomes text for the model."""
    try:
        message = str(fault)
    except Exception:
        message = ""
    name = type(fault).__name__
    return Error(ErrorCode.TOOL_FAILED, _cut(f"{name}: {message}" if message else name, limits))


def _encode(value: Any) -> bytes:
    content = _json.encode(value)
    # msgspec writes NaN as null, so only a text with a null in it needs the walk.
    if b"null" in content:
        _refuse_nan(msgspec.to_builtins(value, enc_hook=_plain))
    return content


def _refuse_nan(value: Any) -> None:
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} is no JSON number")
        case dict():
            for item in value.values():
                _refuse_nan(item)
        case list() | tuple():
            for item in value:
                _refuse_nan(item)


def _cut(text: str, limits: HostLimits) -> str:
    return text if len(text) <= limits.max_error_chars else text[: limits.max_error_chars - 1] + "…"
