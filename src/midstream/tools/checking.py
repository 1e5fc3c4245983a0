"""Owns checking a call's arguments against a tool's model and saying what is wrong. Never runs the tool."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from midstream.errors import ToolArgumentsInvalid

_MAX_FAULTS = 3
_MAX_VALUE_CHARS = 60
_MAX_WHOLE = 2**53
"""Below it every whole float is exact."""

_json = msgspec.json.Encoder(decimal_format="number")


def convert(model: type[BaseModel], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check decoded JSON arguments and return them as Python values, those that were given only.

    Raises ToolArgumentsInvalid, which names each argument at fault, its value and what is accepted.
    """
    try:
        values = model.model_validate_json(_json.encode(arguments))
    except ValidationError as error:
        try:
            # JSON Schema counts 5.0 as an integer, pydantic's strict mode does not.
            values = model.model_validate_json(_json.encode(_whole_floats_as_ints(arguments)))
        except ValidationError:
            raise ToolArgumentsInvalid(_explain(model, error)) from None
    fields = type(values).model_fields
    given = {field.alias or name: getattr(values, name) for name, field in fields.items() if _is_given(values, name)}
    return given | (values.model_extra or {})


def _is_given(values: BaseModel, field: str) -> bool:
    return field in values.model_fields_set


def _whole_floats_as_ints(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < _MAX_WHOLE:
            return int(value)
        case Mapping():
            return {key: _whole_floats_as_ints(item) for key, item in value.items()}
        case list():
            return [_whole_floats_as_ints(item) for item in value]
        case _:
            return value


def _explain(model: type[BaseModel], error: ValidationError) -> str:
    faults = [_fault(model, details) for details in error.errors(include_url=False, include_context=False)]
    more = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
    return "; ".join(faults[:_MAX_FAULTS]) + more


def _fault(model: type[BaseModel], details: ErrorDetails) -> str:
    path = _path(details["loc"])
    match details["type"]:
        case "missing":
            return f"{path} is missing and is required"
        case "extra_forbidden" if len(details["loc"]) == 1:
            known = ", ".join(field.alias or name for name, field in model.model_fields.items())
            return f"there is no argument {path}; there are: {known or 'none'}"
        case _:
            accepted = details["msg"].replace("Input should be", "it should be").replace("Value error, ", "")
            return f"{path} is {_shown(details['input'])}; {accepted}"


def _path(location: tuple[int | str, ...]) -> str:
    """`("stops", 1, "city")` is `stops[1].city`."""
    first, *rest = location or ("arguments",)
    return str(first) + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in rest)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…"
