"""Owns what a JSON Schema says of the values that it allows. Knows no syntax, and reads no value."""

from collections.abc import Iterator, Mapping
from typing import Any

from midstream.protocol.references import resolved

Schema = Mapping[str, Any]


def types_of(schema: Schema, root: Schema) -> tuple[str, ...]:
    """The JSON types that a value of `schema`, a part of `root`, may have; empty where it does not say."""
    types: list[str] = []
    for alternative in alternatives_of(schema, root):
        own = _own_types(alternative)
        if not own:
            return ()
        types += own
    return tuple(dict.fromkeys(types))


def alternatives_of(schema: Schema, root: Schema) -> Iterator[Schema]:
    """What a value of `schema`, a part of `root`, may be, behind references and unions: each part once, in order."""
    pending, seen = [schema], set[int]()
    while pending:
        schema = resolved(pending.pop(), root)
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        branches = [] if _own_types(schema) else branches_of(schema)
        if branches:
            pending += reversed(branches)
        else:
            yield schema


def _own_types(schema: Schema) -> list[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [item for item in kind if isinstance(item, str)]
    if isinstance(schema.get("enum"), list):
        return [_type_of(value) for value in schema["enum"]]
    return [_type_of(schema["const"])] if "const" in schema else []


def branches_of(schema: Schema) -> list[Schema]:
    """What `anyOf` or `oneOf` offers; empty where there is none."""
    branches = schema.get("anyOf", schema.get("oneOf"))
    return [branch for branch in branches if isinstance(branch, dict)] if isinstance(branches, list) else []


def properties_of(schema: Schema) -> list[tuple[str, Schema]]:
    """The declared members of an object that may have a value."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    return [(key, value if isinstance(value, dict) else {}) for key, value in properties.items() if value is not False]


def required_of(schema: Schema) -> list[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def values_of(schema: Schema) -> list[Any] | None:
    """The only values that `schema` allows, where it lists them."""
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return list(schema["enum"])
    return [schema["const"]] if "const" in schema else None


def _type_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
    return "object"
