"""Owns the body of a text completion request, and of tokenize and detokenize. Generates nothing."""

from typing import Annotated, Any

from pydantic import Field

from midstream.gateway.chat_request import MessageBody
from midstream.gateway.fields import FIRST_FAULT, RequestModel
from midstream.gateway.sampling import SamplingFields

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], FIRST_FAULT]


class CompletionRequest(SamplingFields):
    """`POST /v1/completions`."""

    prompt: str | TokenIds | Annotated[list[str], FIRST_FAULT] | Annotated[list[TokenIds], FIRST_FAULT]

    def prompts(self) -> list[str | list[int]]:
        """One entry a prompt, in order."""
        prompt: Any = self.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return [prompt]
        return list(prompt)


class TokenizeRequest(RequestModel):
    """`POST /tokenize`: a prompt, or messages as the chat template renders them."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[MessageBody], FIRST_FAULT, Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: TokenIds
