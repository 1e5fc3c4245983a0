"""Owns the pydantic model that checks a tool's arguments and its JSON Schema. Never calls the tool."""

from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from midstream.errors import ConfigError
from midstream.tools.signature import REQUIRED, AnyFunction, Argument, name_of

_CLOSED = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_OPEN = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
_MAPS_OF_SCHEMAS = ("properties", "patternProperties")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not")
_NOISE = ("title", "discriminator")
_FIRST = ("type", "format", "enum", "description")
"""What a model should read first; pydantic sorts keywords by the alphabet."""


def build_model(function: AnyFunction, arguments: list[Argument], *, is_open: bool = False) -> type[BaseModel]:
    """Make the pydantic model that checks and converts `arguments`; `is_open` lets undeclared ones through.

    Fields are called `p0`, `p1`, … with the parameter's name as their alias, because a parameter may be
    called `json` or `_x` and a field may not. Types are strict in JSON's sense: "5" is no integer.
    """
    fields: dict[str, Any] = {}
    for number, argument in enumerate(arguments):
        default = ... if argument.default is REQUIRED else argument.default
        description = _description(argument.hint) or argument.description
        fields[f"p{number}"] = (argument.hint, Field(default, alias=argument.name, description=description))
    try:
        return create_model("Arguments", __config__=_OPEN if is_open else _CLOSED, **fields)
    except PydanticUserError as error:
        raise _no_json_form(function, error) from error


def schema_of(function: AnyFunction, model: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema of `model`: no titles, `const` as `enum`, references inlined unless they recurse."""
    try:
        schema = model.model_json_schema()
    except PydanticUserError as error:
        raise _no_json_form(function, error) from error
    inliner = _Inliner(schema.get("$defs", {}))
    result = {"type": "object", "properties": inliner.plain(schema).get("properties", {})}
    if "required" in schema:
        result["required"] = schema["required"]
    result["additionalProperties"] = False
    definitions = inliner.recursive_definitions()
    return result | ({"$defs": definitions} if definitions else {})


class _Inliner:
    """Rewrites schemas without `$ref`, except to definitions that contain themselves."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._recursive = {name for name in definitions if name in self._reachable(name)}

    def _reachable(self, start: str) -> set[str]:
        seen: set[str] = set()
        todo = _refs(self._definitions[start])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo |= _refs(self._definitions[name])
        return seen

    def recursive_definitions(self) -> dict[str, Any]:
        return {name: self.plain(self._definitions[name]) for name in sorted(self._recursive)}

    def plain(self, schema: Any) -> Any:
        if not isinstance(schema, dict):  # additionalProperties: false
            return schema
        name = _ref(schema)
        if name is not None and name not in self._recursive:
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            return self.plain(self._definitions[name] | siblings)
        keywords = dict(self._keyword(key, value) for key, value in schema.items() if key not in _NOISE)
        return {key: keywords[key] for key in _FIRST if key in keywords} | keywords

    def _keyword(self, key: str, value: Any) -> tuple[str, Any]:
        if key == "const":
            return "enum", [value]
        if key in _MAPS_OF_SCHEMAS:
            return key, {name: self.plain(subschema) for name, subschema in value.items()}
        if key in _LISTS_OF_SCHEMAS:
            return key, [self.plain(subschema) for subschema in value]
        return key, self.plain(value) if key in _SCHEMAS else value


def _ref(schema: dict[str, Any]) -> str | None:
    ref = schema.get("$ref")
    return ref.removeprefix("#/$defs/") if isinstance(ref, str) else None


def _refs(schema: Any) -> set[str]:
    """Names of the definitions that `schema` refers to, at any depth."""
    if isinstance(schema, list):
        return {name for item in schema for name in _refs(item)}
    if not isinstance(schema, dict):
        return set()
    ref = _ref(schema)
    return {name for item in schema.values() for name in _refs(item)} | ({ref} if ref is not None else set())


def _description(hint: Any) -> str | None:
    """The description that `Annotated[..., Field(description=...)]` gives."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    texts = [extra.description for extra in extras if isinstance(extra, FieldInfo) and extra.description]
    return texts[-1] if texts else None


def _no_json_form(function: AnyFunction, error: PydanticUserError) -> ConfigError:
    return ConfigError(f"tool {name_of(function)}: a type hint has no JSON form: {error.message}")
