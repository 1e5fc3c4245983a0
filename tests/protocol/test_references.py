"""Local references of a JSON Schema: where they lead, what a part of a schema takes with it, how deep all of it is."""

from typing import Any

import pytest

from midstream.protocol.references import num_levels, resolved, self_contained, target_of

ROOT: dict[str, Any] = {
    "properties": {"a": {"type": "integer"}, "x/y": {"type": "null"}, "p%": {"type": "boolean"}},
    "prefixItems": [{"type": "string"}, 5],
    "$defs": {
        "List": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
        "Node": {"anyOf": [{"$ref": "#/$defs/List"}, {"$ref": "#/properties/a"}]},
        "Loop": {"$ref": "#/$defs/Loop"},
    },
}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", ROOT),
        ("#/properties/a", {"type": "integer"}),
        ("#/properties/x~1y", {"type": "null"}),
        ("#/properties/p%25", {"type": "boolean"}),
        ("#/prefixItems/0", {"type": "string"}),
        ("#/prefixItems/1", 5),
        ("#/prefixItems/2", None),
        ("#/prefixItems/٣", None),
        ("#/nowhere/at/all", None),
        ("#/prefixItems/1/deeper", None),
        ("https://example.org/schema", None),
        (7, None),
    ],
)
def test_a_reference_leads_to_its_place_or_nowhere(reference: object, target: object) -> None:
    assert target_of(reference, ROOT) == target


def test_references_are_followed_to_the_end() -> None:
    root = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}}}
    assert resolved({"$ref": "#/$defs/a"}, root) == {"type": "null"}
    assert resolved({"type": "string"}, root) == {"type": "string"}
    assert resolved({"$ref": "#/$defs/Loop"}, ROOT) == {}
    assert resolved({"$ref": "#/nowhere"}, ROOT) == {}
    assert resolved({"$ref": "#/prefixItems/1"}, ROOT) == {}


def test_a_part_takes_what_it_refers_to_with_it_once_each() -> None:
    assert self_contained({"type": "array", "items": {"$ref": "#/$defs/Node"}}, ROOT) == {
        "type": "array",
        "items": {"$ref": "#/$defs/d0"},
        "$defs": {
            "d0": {"anyOf": [{"$ref": "#/$defs/d1"}, {"$ref": "#/$defs/d2"}]},
            "d1": {"type": "array", "items": {"$ref": "#/$defs/d0"}},
            "d2": {"type": "integer"},
        },
    }
    assert self_contained({"type": "null"}, ROOT) == {"type": "null"}
    assert self_contained({"$ref": "#/nowhere"}, ROOT) == {"$ref": "#/nowhere"}


@pytest.mark.parametrize(
    ("schema", "levels"),
    [
        ({}, 1),
        ({"properties": {"a": {"type": ["null"]}}}, 4),
        ({"a": {"$ref": "#/$defs/x"}, "$defs": {"x": {}}}, 3 + 1),
        ({"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/x"}, "$defs": {"x": {}}}, 3 + 1),
        ({"a": {"$ref": "#/$defs/x"}, "$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}}, 4 + 2),
        ({"a": {"$ref": "#"}}, 2 + 2),
        ({"a": {"$ref": "#/nowhere"}}, 2),
    ],
)
def test_levels_are_counted_with_those_of_each_definition(schema: dict[str, Any], levels: int) -> None:
    assert num_levels(schema) == levels
