"""Owns the body of a chat completion request: its fields and their ranges. Generates nothing."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from midstream.gateway.fields import RequestModel
from midstream.gateway.sampling import SamplingFields

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Lenient(RequestModel):
    """A part of a body that clients build from earlier answers: what they add and we do not need is dropped."""

    model_config = RequestModel.model_config | {"extra": "ignore"}


class FunctionCallBody(Lenient):
    name: str
    arguments: str = "{}"


class ToolCallBody(Lenient):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCallBody


class MessageBody(Lenient):
    """One message."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as templates expect it; `developer` is the newer name of `system`."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        return message


class FunctionBody(Lenient):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Lenient):
    type: Literal["function"]
    function: FunctionBody


class NamedFunction(Lenient):
    name: str


class NamedChoice(Lenient):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(SamplingFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[MessageBody], Field(min_length=1)]
    tools: Annotated[list[ToolBody], Field(max_length=4096)] = []
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool = True
    server_tools: list[str] | Literal["all"] = []
    chat_template_kwargs: dict[str, Any] = {}

    @field_validator("messages")
    @classmethod
    def _tool_messages_answer_a_call(cls, messages: list[MessageBody]) -> list[MessageBody]:
        for message in messages:
            if message.role != "assistant" and message.tool_calls:
                raise ValueError("may hold tool_calls in assistant messages only")
        return messages
