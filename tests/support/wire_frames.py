"""Owns the checks that every chunk of a stream passes by itself. Keeps nothing from one chunk to the next."""

import json
from typing import Any, NoReturn

_FINISH_REASONS = {"stop", "length", "tool_calls", "content_filter"}
_STATUS_KEYS = {"description", "done", "call"}
_CALL_KEYS = {"id", "name", "state", "arguments", "result", "error"}


def fail(code: str, number: int, message: str) -> NoReturn:
    raise AssertionError(f"{code} at chunk {number}: {message}")


def read_payloads(raw: bytes, *, whole: bool, allow_comments: bool) -> list[dict[str, Any]]:
    """Return the chunks of `raw` without its `[DONE]`. With `whole`, the `[DONE]` must be there."""
    text = _decode(raw)
    *frames, rest = text.split("\n\n")
    if rest and whole:
        fail("FRAME", len(frames), f"the stream does not end in a blank line but in {rest[-40:]!r}")
    chunks: list[dict[str, Any]] = []
    is_done = False
    for frame in frames:
        if is_done:
            fail("I14", len(chunks), f"{frame[:60]!r} after [DONE]")
        if frame.startswith(":") and "\n" not in frame:
            if not allow_comments:
                fail("I17", len(chunks), f"a comment, {frame!r}, without 15 s of silence")
            continue
        payload = _payload(len(chunks), frame)
        is_done = payload == "[DONE]"
        if not is_done:
            chunks.append(_load(len(chunks), payload))
    if whole and not is_done:
        fail("I14", len(chunks), "no [DONE] at the end")
    return chunks


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        fail("FRAME", raw[: error.start].count(b"\n\n"), f"not UTF-8: {error}")
    if "\r" in text:
        fail("FRAME", text[: text.index("\r")].count("\n\n"), "a carriage return; lines end in a line feed")
    return text


def _payload(number: int, frame: str) -> str:
    if not frame.startswith("data: ") or "\n" in frame:
        fail("FRAME", number, f"a frame is one `data: ` line and no other, not {frame[:60]!r}")
    return frame.removeprefix("data: ")


def _load(number: int, payload: str) -> dict[str, Any]:
    try:
        chunk = json.loads(payload, parse_constant=lambda name: fail("SHAPE", number, f"{name} is not JSON"))
    except ValueError as error:
        fail("SHAPE", number, f"not JSON: {error}: {payload[:60]!r}")
    if type(chunk) is not dict:
        fail("SHAPE", number, f"not an object: {payload[:60]!r}")
    return chunk


def check_envelope(number: int, chunk: dict[str, Any], kind: str, first: dict[str, Any]) -> None:
    """Check `id`, `object`, `created`, `model` and that `choices` is a list of objects."""
    types: dict[str, type] = {"id": str, "object": str, "created": int, "model": str, "choices": list}
    for key, expected in types.items():
        if type(chunk.get(key)) is not expected or (expected is str and not chunk[key]):
            fail("SHAPE", number, f"`{key}` is {chunk.get(key)!r}")
    if chunk["object"] != kind:
        fail("SHAPE", number, f"`object` is {chunk['object']!r}, not {kind!r}")
    for key in ("id", "created", "model"):
        if chunk[key] != first[key]:
            fail("I10", number, f"`{key}` is {chunk[key]!r}, was {first[key]!r}")
    if any(type(choice) is not dict for choice in chunk["choices"]):
        fail("SHAPE", number, "a choice is not an object")


def check_usage(number: int, chunk: dict[str, Any], *, asked: bool) -> dict[str, Any] | None:
    """Return the chunk's usage, None where it has none."""
    if not asked:
        if "usage" in chunk:
            fail("I15", number, "`usage` was not asked for")
        return None
    usage = chunk.get("usage")
    if usage is None:
        if "usage" not in chunk and "event" not in chunk:
            fail("I13", number, "`usage: null` is missing before the last chunk")
        return None
    if chunk["choices"]:
        fail("I13", number, "usage in a chunk with choices")
    counts = [usage.get(key) for key in ("prompt_tokens", "completion_tokens", "total_tokens")]
    if any(type(count) is not int or count < 0 for count in counts):
        fail("I13", number, f"usage counts are {counts}")
    if counts[0] + counts[1] != counts[2]:
        fail("I13", number, f"{counts[0]} + {counts[1]} tokens are not {counts[2]}")
    return dict(usage)


def check_error(number: int, chunk: dict[str, Any]) -> dict[str, Any]:
    error = chunk["error"]
    if type(error) is not dict or type(error.get("message")) is not str or not error["message"]:
        fail("I20", number, f"an error object needs a message, not {error!r}")
    if type(error.get("type")) is not str:
        fail("I20", number, f"an error object needs a type, not {error!r}")
    return error


def check_event(number: int, event: Any) -> dict[str, Any]:
    """Return the `data` of a status event."""
    if type(event) is not dict or event.get("type") != "status" or type(event.get("data")) is not dict:
        fail("EVENT", number, f"not a status event: {event!r}")
    data: dict[str, Any] = event["data"]
    if type(data.get("description")) is not str or type(data.get("done")) is not bool:
        fail("EVENT", number, f"`description` must be a string and `done` a boolean: {data!r}")
    if unknown := set(data) - _STATUS_KEYS:
        fail("EVENT", number, f"unknown keys: {sorted(unknown)}")
    if "call" in data:
        _check_event_call(number, data["call"])
    return data


def _check_event_call(number: int, call: Any) -> None:
    if type(call) is not dict or any(type(call.get(key)) is not str for key in ("id", "name", "state")):
        fail("EVENT", number, f"`call` needs id, name and state: {call!r}")
    if unknown := set(call) - _CALL_KEYS:
        fail("EVENT", number, f"unknown keys in `call`: {sorted(unknown)}")
    if not call["id"] or not call["name"]:
        fail("EVENT", number, f"`call` has an empty id or name: {call!r}")


def check_finish_reason(number: int, choice: dict[str, Any]) -> str | None:
    if "finish_reason" not in choice:
        fail("SHAPE", number, "`finish_reason: null` is missing")
    reason = choice["finish_reason"]
    if reason is not None and reason not in _FINISH_REASONS:
        fail("I11", number, f"finish_reason {reason!r} is not one of OpenAI's")
    return None if reason is None else str(reason)
