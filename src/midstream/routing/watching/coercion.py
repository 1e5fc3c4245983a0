"""Owns the meaning of an argument's text in dialects without types: the schema says what it is. Guesses nothing."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": "true", "false": "false"}
_MAX_LITERAL = 1 << 20
_MAX_REFERENCES = 4


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The JSON types that a value of `schema` may have; empty where it does not say."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    if isinstance(kind, list):
        return tuple(item for item in kind if isinstance(item, str))
    if isinstance(schema.get("enum"), list):
        return tuple(dict.fromkeys(_type_of(value) for value in schema["enum"]))
    if "const" in schema:
        return (_type_of(schema["const"]),)
    return tuple(dict.fromkeys(kind for branch in branches_of(schema) for kind in types_of(branch)))


def branches_of(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What `anyOf` or `oneOf` offers; empty where there is none."""
    branches = schema.get("anyOf", schema.get("oneOf"))
    return [branch for branch in branches if isinstance(branch, dict)] if isinstance(branches, list) else []


def expanded(value: Mapping[str, Any], root: Mapping[str, Any], depth: int = _MAX_REFERENCES) -> dict[str, Any]:
    """`value` with the definitions in `root` that it refers to in their places, to a depth."""
    plain = dict(resolved(value, root))
    if depth == 0:
        return plain
    for key in ("anyOf", "oneOf"):
        if key in plain:
            plain[key] = [expanded(branch, root, depth - 1) for branch in branches_of({key: plain[key]})]
    if isinstance(plain.get("items"), dict):
        plain["items"] = expanded(plain["items"], root, depth - 1)
    if isinstance(plain.get("properties"), dict):
        properties = plain["properties"].items()
        plain["properties"] = {
            key: expanded(item, root, depth - 1) for key, item in properties if isinstance(item, dict)
        }
    return plain


def resolved(value: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`value`, or the definition in `root` that it refers to."""
    for _ in range(_MAX_REFERENCES):
        reference = value.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for part in reference[2:].split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            break
        value = found
    return value


def coerce(text: str, schema: Mapping[str, Any]) -> str | None:
    """The JSON of the value that `text` stands for; None when the schema has no value of that form.

    Where the schema allows a string and something else, the something else wins if the text has its form.
    """
    types = types_of(schema)
    for kind in types:
        value = _as(kind, text.strip())
        if value is not None:
            return value
    return json.dumps(text, ensure_ascii=False) if not types or "string" in types else None


def _as(kind: str, text: str) -> str | None:
    match kind:
        case "integer":
            return text if _INTEGER.fullmatch(text) else None
        case "number":
            return text if _NUMBER.fullmatch(text) else None
        case "boolean":
            return _BOOLEANS.get(text.lower())
        case "null":
            return "null" if text.lower() in ("null", "none") else None
        case "object" | "array":
            return _container(text, "{" if kind == "object" else "[")
    return None


def _container(text: str, opening: str) -> str | None:
    """JSON as it stands; what Python prints of a list or a dict is taken too."""
    if not text.startswith(opening):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        return text
    try:
        return json.dumps(ast.literal_eval(text[:_MAX_LITERAL]), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


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
