"""Owns the body of a chat completion request: its fields and their ranges. Generates nothing."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from midstream.errors import RequestError
from midstream.gateway.fields import FIRST_FAULT, RequestModel
from midstream.gateway.sampling import SamplingFields
from midstream.modelfile.chat_template import RESERVED

MAX_NAMED_CALLS = 16
"""Calls that a request may ask for by name."""

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
    content: str | Annotated[list[dict[str, Any]], FIRST_FAULT] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallBody], FIRST_FAULT] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _has_what_its_role_needs(self) -> Self:
        if self.role == "assistant":
            return self
        if self.content is None:
            raise ValueError("needs `content`; only a message of role assistant may be without")
        if self.tool_calls:
            raise ValueError("may hold `tool_calls` only where its role is assistant")
        return self

    @property
    def num_characters(self) -> int:
        """The length of its texts."""
        parts = self.content if isinstance(self.content, list) else [{"text": self.content or ""}]
        texts = [part.get("text") for part in parts]
        texts += [call.function.arguments for call in self.tool_calls or ()]
        return sum(len(text) for text in texts if isinstance(text, str))

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

    messages: Annotated[list[MessageBody], FIRST_FAULT, Field(min_length=1)]
    tools: Annotated[list[ToolBody], FIRST_FAULT, Field(max_length=4096)] = []
    tool_choice: (
        Literal["none", "auto", "required"]
        | NamedChoice
        | Annotated[list[NamedChoice], Field(min_length=1, max_length=MAX_NAMED_CALLS)]
        | None
    ) = None
    """A list, which OpenAI's API does not have, asks for those calls in that order."""
    parallel_tool_calls: bool = True
    tool_mode: Literal["inline", "interleaved"] = "inline"
    """Interleaved: the model goes on writing while a server tool runs; the result joins at the next clean boundary."""
    server_tools: Annotated[list[str], FIRST_FAULT] | Literal["all"] = []
    chat_template_kwargs: dict[str, Any] = {}

    @field_validator("chat_template_kwargs")
    @classmethod
    def _leaves_ours_alone(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(RESERVED & kwargs.keys())
        if taken:
            raise RequestError(
                f"chat_template_kwargs may not set {', '.join(taken)}: the request's own fields do",
                param="chat_template_kwargs",
            )
        return kwargs
