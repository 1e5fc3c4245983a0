"""Owns the sampling fields that chat and completions share, and their way to `SamplingParams`."""

import secrets
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from midstream.errors import ContextLengthExceeded, RequestError
from midstream.gateway.fields import FIRST_FAULT, RequestModel
from midstream.messages import SamplingParams

MAX_STOPS = 16
_MAX_SEED = (1 << 63) - 1


class StreamOptions(RequestModel):
    """`continuous_usage_stats` and other clients' wishes are taken and not served."""

    model_config = RequestModel.model_config | {"extra": "ignore"}

    include_usage: bool = False


class SamplingFields(RequestModel):
    """Fields of every generating request. Ranges are OpenAI's where it has the field, vLLM's elsewhere."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=16)] = 1
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-_MAX_SEED - 1, le=_MAX_SEED)] | None = None
    stop: str | Annotated[list[str], FIRST_FAULT] = []
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], FIRST_FAULT] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False

    @field_validator("stop")
    @classmethod
    def _stops(cls, stop: str | list[str]) -> list[str]:
        stops = [stop] if isinstance(stop, str) else stop
        if len(stops) > MAX_STOPS:
            raise ValueError(f"may hold at most {MAX_STOPS} strings")
        if "" in stops:
            raise ValueError("may not hold an empty string")
        return stops

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


def sampling_params(
    fields: SamplingFields, *, num_prompt_tokens: int, max_model_len: int, choice: int = 0
) -> SamplingParams:
    """What the engine samples choice number `choice` with.

    Raises ContextLengthExceeded where prompt and answer do not fit.
    """
    room = max_model_len - num_prompt_tokens
    if room <= 0:
        raise ContextLengthExceeded(
            f"the prompt is {num_prompt_tokens} tokens; the limit is {max_model_len - 1}, which leaves room for one "
            "more; shorten it or start the server with a larger --max-model-len",
            param="messages" if "messages" in type(fields).model_fields else "prompt",
        )
    wanted = fields.wanted_tokens
    if wanted is not None and wanted > room:
        name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
        raise ContextLengthExceeded(
            f"{name} is {wanted} and the prompt is {num_prompt_tokens} tokens; together the limit is "
            f"{max_model_len}; lower {name} to {room} or shorten the prompt",
            param=name,
        )
    max_tokens = wanted or room
    if fields.min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens is {fields.min_tokens}; max_tokens is {max_tokens}; lower the first",
            param="min_tokens",
        )
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=max(0, fields.top_k),
        min_p=fields.min_p,
        seed=_seed(fields.seed, choice),
        stop=tuple(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids),
        ignore_eos=fields.ignore_eos,
        include_stop=fields.include_stop_str_in_output,
    )


def _seed(seed: int | None, choice: int) -> int:
    """Choices of one seeded request differ from each other, and each is the same every time."""
    if seed is None:
        return secrets.randbits(63)
    return (seed + choice * 0x9E3779B97F4A7C15) & _MAX_SEED
