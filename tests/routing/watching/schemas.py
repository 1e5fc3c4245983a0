"""Owns schemas of all kinds, what their arguments must be, and the canonical text of a call."""

from collections.abc import Callable
from typing import Any

MARKER = "<tool_call>"


def call(arguments: str = '{"a": "b"}', name: str = "x") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def object_of(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    wanted = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": wanted, "additionalProperties": False}


STRING = {"type": "string"}
ONLY_B = object_of(a={"type": "string", "enum": ["b"]})

SCHEMAS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
    "string": (object_of(a=STRING), lambda a: isinstance(a["a"], str)),
    "enum": (object_of(a={"enum": ["PVG", "TXL", 7]}), lambda a: a["a"] in ("PVG", "TXL", 7)),
    "date": (object_of(a={"type": "string", "format": "date"}), lambda a: len(a["a"]) == 10),
    "numbers": (
        object_of(a={"type": "integer"}, b={"type": "number"}),
        lambda a: isinstance(a["a"], int) and isinstance(a["b"], int | float),
    ),
    "range": (object_of(a={"type": "integer", "minimum": 3, "maximum": 12}), lambda a: 3 <= a["a"] <= 12),
    "optional": (object_of(["b"], a=STRING, b={"type": "boolean"}), lambda a: isinstance(a["b"], bool)),
    "nested": (
        object_of(a=object_of(b={"type": "array", "items": {"type": "integer"}, "maxItems": 3}, c={"type": "null"})),
        lambda a: all(isinstance(item, int) for item in a["a"]["b"]) and a["a"]["c"] is None,
    ),
    "anyOf": (
        object_of(a={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        lambda a: a["a"] is None or isinstance(a["a"], int),
    ),
    "none": (object_of(), lambda a: a == {}),
    "no properties": ({"type": "object"}, lambda a: True),
    "no type": ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, lambda a: isinstance(a["a"], int)),
    "$ref": (
        {**object_of(a={"$ref": "#/$defs/colour"}), "$defs": {"colour": {"enum": ["red", "blue"]}}},
        lambda a: a["a"] in ("red", "blue"),
    ),
    "unsupported keywords": (
        object_of(a={"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "x-mine": 1, "maxItems": 2}),
        lambda a: all(isinstance(item, bool) for item in a["a"]),
    ),
    "odd names": (
        object_of(**{'a "quoted" \\ name': {"type": "integer"}, "größe": {"type": "integer"}}),
        lambda a: set(a) == {'a "quoted" \\ name', "größe"},
    ),
}
