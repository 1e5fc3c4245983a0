"""Owns what becomes of request fields that are not served: ignored, refused, or unknown. Validates no field that is."""

import difflib
import math
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from midstream.errors import RequestError, UnsupportedField

# Sent by common clients; none of them changes what is generated.
IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "continuous_usage_stats",
        "repetition_detection",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "add_generation_prompt",
        "cache_prompt",
        "id_slot",
        "request_id",
        "priority",
    }
)

# Fields that change the answer and are not served: the values at which they change nothing pass.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("none",),
    "reasoning_effort": (),
    "verbosity": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "tool_mode": ("inline",),
}


class RequestModel(BaseModel):
    """A request body. Fields are the served ones; the others go through `parse`."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


M = TypeVar("M", bound=RequestModel)


def parse(model: type[M], body: dict[str, Any]) -> M:
    """Validate a body. Raises RequestError that names the field, its value and what is accepted.

    A null counts as not given.
    """
    served = model.model_fields.keys()
    known = {}
    for name, value in body.items():
        if value is None or (name in IGNORED and name not in served):
            continue
        if name in served:
            known[name] = value
        elif name in NEUTRAL:
            if not _is_neutral(value, NEUTRAL[name]):
                raise UnsupportedField(f"{name} is not supported yet; leave it out", param=name)
        else:
            raise RequestError(
                f"unknown field {name!r}{_nearest(name, [*served, *NEUTRAL])}",
                param=name,
                code="unknown_parameter",
            )
    try:
        return model.model_validate(known)
    except ValidationError as error:
        raise _explain(error) from None


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == accepted for accepted in neutral)


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _explain(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False)[0]
    path = [part for part in first["loc"] if not (isinstance(part, str) and part.startswith(_UNION_TAGS))]
    param = ".".join(str(part) for part in path)
    if first["type"] == "missing":
        return RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return RequestError(f"unknown field {param!r}", param=param, code="unknown_parameter")
    reason = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return RequestError(f"{param} is {_shown(first['input'])}; it {_lower(reason)}", param=param)


# pydantic puts the branch of a union into the path; a client wrote no such thing.
_UNION_TAGS = ("str", "list[", "int", "function-", "NamedChoice", "literal[", "constrained-", "lax-or-strict")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
