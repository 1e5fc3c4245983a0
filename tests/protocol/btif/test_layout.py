from typing import Any

import pytest

from midstream.errors import BtifError
from midstream.protocol import btif
from midstream.protocol.btif import Layout


def test_the_digest_tells_schemas_apart_by_the_order_of_their_properties() -> None:
    a_first, b_first = (
        Layout.of({"properties": {"a": {}, "b": {}}}),
        Layout.of({"properties": {"b": {}, "a": {}}}),
    )
    assert a_first.names == ("a", "b")
    assert a_first.digest != b_first.digest
    assert a_first.digest == Layout.of({"properties": {"a": {}, "b": {}}}).digest


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"properties": 5, "required": "a", "additionalProperties": 3},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"properties": {"a": {"$ref": 7}}},
        {"properties": {"a": {"$ref": "https://example.org/schema"}}},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"properties": {"a": {"$ref": "#/required/9"}}, "required": ["a", 5, None]},
        {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}},
        {"properties": {"a": {"anyOf": {}}}},
        {"properties": {"a": {"enum": {"x": 1}, "items": [True], "prefixItems": "no"}}},
        {"properties": {"a": False}},
        {"properties": {"a": None}},
    ],
)
def test_nonsense_in_a_schema_means_no_schema(schema: dict[str, Any]) -> None:
    layout = Layout.of(schema)
    text = '{"a":["2024-06-20",{"a":"x"}]}'
    frame = btif.encode(1, layout, text)
    assert btif.arguments_json(frame, layout) == text


def test_a_recursive_schema_applies_at_every_level() -> None:
    tree = {"properties": {"day": {"format": "date"}, "next": {"$ref": "#/$defs/Tree"}}}
    layout = Layout.of({"properties": {"tree": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": tree}})
    frame = btif.encode(1, layout, '{"tree":{"next":{"next":{"day":"1970-01-02"}}}}')
    assert frame.hex().endswith("03646179" + "020001")


def test_a_schema_that_is_not_json_is_refused() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["properties"] = cyclic
    for schema in (cyclic, {"properties": {"a": {"enum": [object()]}}}):
        with pytest.raises(BtifError, match="not JSON"):
            Layout.of(schema)
