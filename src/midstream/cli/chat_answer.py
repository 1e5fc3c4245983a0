"""Owns what one streamed answer says: bytes of a chat completions stream in, events out. Never does I/O."""

import json
from typing import Any

import msgspec

from midstream.sdk.sse import SseParser


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    text: str


class ToolState(msgspec.Struct, frozen=True, tag="tool", omit_defaults=True):
    """A step in a call's life: midstream's own states, and `requested` for a call left to the client."""

    call_id: str
    name: str
    state: str
    """In lower case."""
    arguments: str | None = None
    result: str | None = None
    error: str | None = None
    description: str = ""


class Status(msgspec.Struct, frozen=True, tag="status"):
    """A status event that belongs to no call."""

    description: str
    done: bool


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    finish_reason: str
    usage: dict[str, Any] | None = None


class Failed(msgspec.Struct, frozen=True, tag="error", omit_defaults=True):
    """Why there is no whole answer. No other event follows."""

    message: str
    code: str | None = None


Event = Text | Reasoning | ToolState | Status | Finished | Failed


class _OpenCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: str = ""


class AnswerReader:
    """Reads one response of any OpenAI-compatible server; is lenient about shapes, strict about the end.

    Every answer ends with exactly one `Finished` or `Failed`.
    """

    def __init__(self) -> None:
        self._sse = SseParser()
        self._calls: dict[int, _OpenCall] = {}
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._is_over = False

    def feed(self, data: bytes) -> list[Event]:
        return self._read(self._sse.feed(data))

    def finish(self) -> list[Event]:
        """Return what is left when the stream has ended."""
        events = self._read(self._sse.finish())
        if self._is_over:
            return events
        self._is_over = True
        if self._finish_reason is None:
            return [*events, Failed("the stream ended in the middle of the answer")]
        requested = [
            ToolState(call.call_id, call.name, "requested", arguments=call.arguments) for call in self._calls.values()
        ]
        return [*events, *requested, Finished(self._finish_reason, self._usage)]

    def _read(self, payloads: list[str]) -> list[Event]:
        events: list[Event] = []
        for payload in payloads:
            if not self._is_over and payload != "[DONE]":
                events += self._read_payload(payload)
        return events

    def _read_payload(self, payload: str) -> list[Event]:
        try:
            chunk = json.loads(payload)
        except ValueError:
            return self._fail(f"the server sent a chunk that is not JSON: {payload[:80]!r}")
        if not isinstance(chunk, dict):
            return self._fail(f"the server sent a chunk that is no object: {payload[:80]!r}")
        if chunk.get("error"):
            failed = read_error(chunk)
            return self._fail(failed.message, failed.code)
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        events = _read_status(_dict(chunk.get("event")))
        for choice in _dicts(chunk.get("choices"))[:1]:
            events += self._read_choice(choice)
        return events

    def _read_choice(self, choice: dict[str, Any]) -> list[Event]:
        delta = _dict(choice.get("delta"))
        events: list[Event] = []
        if reasoning := _str(delta.get("reasoning")) or _str(delta.get("reasoning_content")):
            events.append(Reasoning(reasoning))
        if text := _str(delta.get("content")):
            events.append(Text(text))
        for entry in _dicts(delta.get("tool_calls")):
            events += self._read_call(entry)
        self._finish_reason = _str(choice.get("finish_reason")) or self._finish_reason
        return events

    def _read_call(self, entry: dict[str, Any]) -> list[Event]:
        function = _dict(entry.get("function"))
        index = entry.get("index")
        if not isinstance(index, int):  # some servers leave it out: an id opens the next call
            index = len(self._calls) if entry.get("id") else max(len(self._calls) - 1, 0)
        is_new = index not in self._calls
        call = self._calls.setdefault(index, _OpenCall(_str(entry.get("id")), _str(function.get("name"))))
        call.arguments += _str(function.get("arguments"))
        return [ToolState(call.call_id, call.name, "routed")] if is_new else []

    def _fail(self, message: str, code: str | None = None) -> list[Event]:
        self._is_over = True
        return [Failed(message, code)]


def read_error(body: Any) -> Failed:
    """Return what an error body says, in whichever of the usual shapes it is."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return Failed(str(error))
    message = _str(error.get("message")) or _str(error.get("detail")) or json.dumps(error)
    code = error.get("code") or error.get("type")
    return Failed(message, None if code is None else str(code))


def _read_status(event: dict[str, Any]) -> list[Event]:
    if event.get("type") != "status":
        return []
    data = _dict(event.get("data"))
    call, description = _dict(data.get("call")), _str(data.get("description"))
    if not call:
        return [Status(description, bool(data.get("done")))]
    call_id, name, state = (_str(call.get(key)) for key in ("id", "name", "state"))
    arguments, result, error = (_text_or_none(call.get(key)) for key in ("arguments", "result", "error"))
    return [ToolState(call_id, name, state.lower(), arguments, result, error, description)]


def _text_or_none(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""
