"""Owns what becomes of request fields that are not served: ignored, refused, or unknown. Validates no field that is."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, FailFast, ValidationError, model_validator

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
}


class _FirstFault(FailFast):
    __hash__ = object.__hash__  # so that it may stand in a union


FIRST_FAULT = _FirstFault()
"""A list is refused at its first bad entry: to collect a million of them takes seconds."""


class RequestModel(BaseModel):
    """A request body or a part of one. A null counts as not given.

    Of a whole body, fields are the served ones; the others go through `parse`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


M = TypeVar("M", bound=RequestModel)


def parse(model: type[M], body: dict[str, Any]) -> M:
    """Validate a body. Raises RequestError that names the field, its value and what is accepted."""
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
            raise _unknown(name, [*served, *NEUTRAL])
    try:
        return model.model_validate(known)
    except ValidationError as error:
        raise _explain(error) from None


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == accepted for accepted in neutral)


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the name that was perhaps meant, or nothing. `name` is a short one: the search is quadratic."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def shortened(text: str, max_characters: int = 80) -> str:
    """What is shown of a client's text: an error is no place for megabytes."""
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


def _unknown(name: str, known: Iterable[str]) -> RequestError:
    shown = shortened(name)
    hint = nearest(shown, known) or "; leave it out"
    return RequestError(f"unknown field {shown!r}{hint}", param=shown, code="unknown_parameter")


def _explain(error: ValidationError) -> RequestError:
    fault = _most_telling(error.errors(include_url=False, include_context=False))
    param = ".".join(_path(fault))
    if fault["type"] == "missing":
        return RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
    if fault["type"] == "extra_forbidden":
        return _unknown(param, [])
    shown = shortened(orjson.dumps(fault["input"]).decode())
    return RequestError(f"{param} is {shown}; it {_wanted(fault)}", param=param)


def _most_telling(faults: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first fault; where a union has one for each of its branches, that of the branch that got furthest."""
    first = _path(faults[0])
    of_first = [fault for fault in faults if _path(fault)[: len(first)] == first]
    # Among equals, words that are accepted tell more than a type, and a limit more than the words.
    return max(of_first, key=lambda fault: (len(_path(fault)), _TELLING.get(fault["type"], 0)))


_TELLING = {"literal_error": 1, "too_short": 2, "too_long": 2}


# pydantic puts the branch of a union into the path, as a type's name; a client wrote no such thing.
_BRANCHES = frozenset({"str", "int", "constrained-int", "NamedChoice"})


def _path(fault: Mapping[str, Any]) -> list[str]:
    top, *parts = [str(part) for part in fault["loc"]]
    return [top, *(part for part in parts if part not in _BRANCHES and "[" not in part)]


_WANTED = {
    "model_type": "should be an object",
    "dict_type": "should be an object",
    "list_type": "should be an array",
    "string_type": "should be a string",
    "bool_type": "should be true or false",
}
_SUBJECTS = ("Input ", "List ", "String ", "Value error, ")


def _wanted(fault: Mapping[str, Any]) -> str:
    """What is accepted, as a sentence without its subject."""
    message: str = fault["msg"]
    for subject in _SUBJECTS:
        message = message.removeprefix(subject)
    return _WANTED.get(fault["type"], message.replace(" after validation", ""))
