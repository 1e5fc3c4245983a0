"""Owns the bytes of a chat completion stream: one frame for each item, in the shape that strict clients need.

The invariants are those of OpenAI's streams: `role` once a choice and only with its first content, dense call
indexes, no empty keys in a delta, one `finish_reason` a choice.
"""

from collections.abc import Callable
from typing import Any

import orjson

from midstream.gateway.items import ClientArguments, ClientCall, ClientCallFailed, Ended, Item
from midstream.messages import ReasoningDelta, TextDelta, TokenCounts
from midstream.routing.dispatching.status import OUTCOMES, CallState, CallStatus


def usage(counts: list[TokenCounts]) -> dict[str, Any]:
    """Token usage of one prompt's choices. Injected and computed tokens are ours, beside OpenAI's fields."""
    generated = sum(count.generated for count in counts)
    prompt = max((count.prompt for count in counts), default=0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": max((min(c.cached, c.prompt) for c in counts), default=0)},
        "injected_tokens": sum(count.injected for count in counts),
        "computed_tokens": sum(count.computed for count in counts),
    }


def status_event(status: CallStatus) -> dict[str, Any]:
    """The `event` of one change in a server call's life."""
    call: dict[str, Any] = {"id": status.call_id, "name": status.name, "state": status.state.value}
    for name in ("arguments", "result", "error"):
        value = getattr(status, name)
        if value is not None:
            call[name] = value
    is_done = status.state in OUTCOMES or status.state is CallState.INJECTED
    return {"type": "status", "data": {"description": status.description, "done": is_done, "call": call}}


_NO_CONTENT = b'"content":""'


class ChatChunks:
    """Turns the items of all choices of one request into frames. Holds what has to stay the same over a stream."""

    def __init__(
        self,
        *,
        completion_id: str,
        created: int,
        model: str,
        include_usage: bool,
        new_call_id: Callable[[str, int], str],
    ) -> None:
        self._head = {
            "id": completion_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}
        self._new_call_id = new_call_id
        self._begun: set[int] = set()
        self._around_text: dict[int, tuple[bytes, bytes]] = {}
        self._calls: dict[tuple[int, int], tuple[str, str]] = {}

    def frame(self, choice: int, item: Item) -> bytes:
        match item:
            case TextDelta(text):
                return self._text(choice, text)
            case ReasoningDelta(text):
                return self._delta(choice, {"reasoning": text, "reasoning_content": text})
            case ClientCall(index, name, call_id):
                return self._call(choice, index, name, call_id or self._new_call_id(name, index))
            case ClientArguments(index, text):
                return self._delta(choice, {"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            case ClientCallFailed(index, reason):
                call_id, name = self._calls[choice, index]
                return self._event(
                    CallStatus(call_id, name, CallState.FAILED, f"The call of {name} is invalid", error=reason)
                )
            case CallStatus():
                return self._event(item)
            case Ended():
                return self._delta(choice, {}, finish_reason=item.reason.value)

    def usage(self, counts: list[TokenCounts]) -> bytes:
        return self._frame({"choices": [], "usage": usage(counts)})

    def _text(self, choice: int, text: str) -> bytes:
        """A frame of text; all of a choice but the first differ in the text alone, which alone is encoded."""
        if choice not in self._begun:
            return self._delta(choice, {"content": text})
        if choice not in self._around_text:
            before, _, after = self._delta(choice, {"content": ""}).partition(_NO_CONTENT)
            self._around_text[choice] = before + _NO_CONTENT[:-2], after
        before, after = self._around_text[choice]
        return before + orjson.dumps(text) + after

    def _call(self, choice: int, index: int, name: str, call_id: str) -> bytes:
        self._calls[choice, index] = (call_id, name)
        call = {
            "index": index,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        return self._delta(choice, {"tool_calls": [call]})

    def _event(self, status: CallStatus) -> bytes:
        return self._frame({"choices": [], "event": status_event(status), **self._tail})

    def _delta(self, choice: int, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        if choice not in self._begun:
            self._begun.add(choice)
            delta = {"role": "assistant", **delta}
        body = {"index": choice, "delta": delta, "finish_reason": finish_reason}
        return self._frame({"choices": [body], **self._tail})

    def _frame(self, body: dict[str, Any]) -> bytes:
        return b"data: " + orjson.dumps(self._head | body) + b"\n\n"
