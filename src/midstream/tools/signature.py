"""Owns reading a tool's arguments from its function or from a given schema. Never calls the function."""

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from midstream.errors import ConfigError
from midstream.tools.docstring import describe

AnyFunction = Callable[..., Any]

REQUIRED = inspect.Parameter.empty

_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_HINTS = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


@dataclass(frozen=True)
class Argument:
    """One parameter of a tool, before pydantic sees it."""

    name: str
    hint: Any
    default: Any = REQUIRED
    description: str | None = None


def arguments_from_signature(function: AnyFunction) -> list[Argument]:
    """Read the arguments of `function` from its hints, defaults and docstring, in signature order."""
    hints = _hints(function)
    _, descriptions = describe(function)
    arguments = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in _STARS:
            why = "a model cannot be told of it; name every parameter or give parameters={...}"
            _refuse(function, _STARS[parameter.kind] + name, why)
        _check_parameter(function, parameter)
        if name not in hints:
            _refuse(function, name, "it has no type hint; add one or give parameters={...}")
        hint = str if _is_stream(hints[name]) else hints[name]
        arguments.append(Argument(name, hint, parameter.default, descriptions.get(name)))
    return arguments


def streamed_argument(function: AnyFunction) -> str | None:
    """The parameter that wants its text while it is written: an `AsyncIterator[str]`. Raises ConfigError.

    Such a tool starts before anything else is known, so that parameter is its only one.
    """
    streamed = [name for name, hint in _hints(function).items() if _is_stream(hint) and name != "return"]
    if not streamed:
        return None
    [name] = streamed[:1]
    if len(inspect.signature(function).parameters) > 1:
        _refuse(function, name, "a streamed argument has to be the only one; the others are not known when it begins")
    if inspect.signature(function).parameters[name].default is not REQUIRED:
        _refuse(function, name, "a streamed argument has no default: the function begins when it does")
    if not inspect.iscoroutinefunction(function):
        _refuse(function, name, "a streamed argument needs an `async def`")
    return name


def _is_stream(hint: Any) -> bool:
    return get_origin(hint) is AsyncIterator and get_args(hint) == (str,)


def arguments_from_schema(function: AnyFunction, schema: Mapping[str, Any]) -> list[Argument]:
    """Read the arguments of `function` from a given JSON Schema; the hints that there are still convert."""
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        raise ConfigError(f"tool {name_of(function)}: parameters must be the JSON Schema of an object")
    hints = _hints(function)
    signature = inspect.signature(function).parameters
    for name, parameter in signature.items():
        _check_parameter(function, parameter)
        if parameter.kind not in _STARS and parameter.default is REQUIRED and name not in properties:
            _refuse(function, name, "it has no default and the given schema does not declare it")
    arguments = []
    for name, subschema in properties.items():
        if name not in signature and not takes_more(function):
            _refuse(function, name, "the given schema declares it and the function does not take it")
        default = signature[name].default if name in signature else None
        if name in schema.get("required", ()):
            default = REQUIRED
        elif default is REQUIRED:
            _refuse(function, name, "it has no default, so the given schema must list it in `required`")
        hint = hints.get(name, _hint_of(subschema))
        arguments.append(Argument(name, str if _is_stream(hint) else hint, default))
    return arguments


def takes_more(function: AnyFunction) -> bool:
    """Whether `function` has a `**kwargs`, which only a tool with a given schema may have."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _hints(function: AnyFunction) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"tool {name_of(function)}: its type hints cannot be read: {error}") from error


def _hint_of(schema: Any) -> Any:
    """The nearest Python type for a parameter without a hint; Any where a name does not say it all."""
    if not isinstance(schema, Mapping):
        return Any
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        return Literal[tuple(choices)]
    declared = schema.get("type")
    return _HINTS.get(declared, Any) if isinstance(declared, str) else Any


def _check_parameter(function: AnyFunction, parameter: inspect.Parameter) -> None:
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        _refuse(function, parameter.name, "it is positional-only; tools are called by name")
    if isinstance(parameter.default, FieldInfo):
        _refuse(function, parameter.name, "write Annotated[type, Field(...)] and a plain default")


def _refuse(function: AnyFunction, parameter: str, why: str) -> NoReturn:
    raise ConfigError(f"tool {name_of(function)}, parameter {parameter}: {why}")
