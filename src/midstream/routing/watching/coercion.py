"""Owns the meaning of an argument's text in dialects without types: the schema says what it is. Guesses nothing."""

import ast
import json
import re

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": "true", "false": "false"}
_MAX_LITERAL = 1 << 20


def coerce(text: str, types: tuple[str, ...]) -> str | None:
    """The JSON of the value that `text` stands for; None when none of `types` has a value of that form.

    Where a string and something else are allowed, the something else wins if the text has its form.
    """
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
