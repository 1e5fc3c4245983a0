"""Owns a chat choice's answer as it grows: what the client will keep of it. Renders the whole, non-streamed body."""

from collections.abc import Callable
from typing import Any

from midstream.gateway.chat_chunks import status_event
from midstream.gateway.items import ClientArguments, ClientCall, ClientCallFailed, Ended, Item
from midstream.messages import FinishReason, ReasoningDelta, TextDelta
from midstream.routing.dispatching.status import OUTCOMES, CallStatus


class ChatAnswer:
    """Collects the items of one choice."""

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._given_ids: dict[int, str] = {}
        self.server_calls: list[dict[str, Any]] = []

    def add(self, item: Item) -> None:
        match item:
            case TextDelta(text):
                self._texts.append(text)
            case ReasoningDelta(text):
                self._reasoning.append(text)
            case ClientCall(index, name, call_id):
                self._calls[index] = {"name": name, "arguments": ""}
                if call_id is not None:
                    self._given_ids[index] = call_id
            case ClientArguments(index, text):
                self._calls[index]["arguments"] += text
            case ClientCallFailed(index):
                del self._calls[index]
            case CallStatus(state=state) if state in OUTCOMES:
                self.server_calls.append(status_event(item)["data"]["call"])
            case Ended():
                self.ended = item

    def kept(self) -> dict[str, Any] | None:
        """The message that a client sends back next time; None when there will be no such turn."""
        if self.ended is None or (self.ended.reason is FinishReason.LENGTH and self._calls):
            return None
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._texts)}
        if self._calls:
            message["tool_calls"] = [{"function": function} for function in self._calls.values()]
        return message

    def body(self, index: int, new_call_id: Callable[[str, int], str]) -> dict[str, Any]:
        """The choice in a non-streamed response."""
        assert self.ended is not None
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._texts) or None}
        if not self._calls and message["content"] is None:
            message["content"] = ""
        if self._reasoning:
            message["reasoning"] = message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": self._given_ids.get(number) or new_call_id(function["name"], number),
                    "type": "function",
                    "function": function,
                }
                for number, function in self._calls.items()
            ]
        if self.server_calls:
            message["server_calls"] = self.server_calls
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self.ended.reason.value,
            "stop_reason": self.ended.stop_reason,
        }
