"""Owns hypothesis strategies for schemas, arguments and JSON texts. Holds no test."""

import json
from typing import Any

from hypothesis import strategies as st

names = st.sampled_from(["a", "b", "c", "é", "city", ""])
dates = st.dates().map(lambda day: day.isoformat())
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | dates | st.sampled_from(["k", "c", "x" * 300])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
leaf_schemas: st.SearchStrategy[Any] = st.sampled_from(
    [
        True,
        {},
        {"type": "string", "format": "date"},
        {"type": "string", "enum": ["k", "c", "k", 5, "2024-06-20"]},
        {"type": "string", "format": "date", "enum": ["2024-06-20"]},
        {"$ref": "#/$defs/Unit"},
        {"$ref": "#"},
        {"$ref": "#/$defs/Loop"},
        {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]},
    ]
)
schemas = st.recursive(
    leaf_schemas,
    lambda inner: (
        st.fixed_dictionaries({"items": inner}, optional={"prefixItems": st.lists(inner, max_size=2)})
        | st.fixed_dictionaries(
            {"properties": st.dictionaries(names, inner, max_size=3)},
            optional={"additionalProperties": inner},
        )
    ),
    max_leaves=6,
)


def tool_schema(properties: dict[str, Any], additional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": additional,
        "$defs": {"Unit": {"type": "string", "enum": ["k", "c"]}, "Loop": {"$ref": "#/$defs/Loop"}},
    }


tool_schemas = st.builds(tool_schema, st.dictionaries(names, schemas, max_size=4), schemas)
arguments = st.dictionaries(names, json_values, max_size=5)
argument_texts = arguments.map(json.dumps)
