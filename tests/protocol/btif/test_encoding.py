from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import BtifError
from midstream.protocol import btif
from midstream.protocol.btif import DecimalText, FrameBuilder, Layout
from tests.protocol.btif.support import ANY, FLIGHT, VECTORS, build_shuffled, titled


@titled("valid")
def test_arguments_encode_to_the_vectors_frame(vector: dict[str, Any]) -> None:
    frame = btif.encode(vector["tool_id"], Layout.of(vector["schema"]), vector["arguments_json"])
    assert frame.hex() == vector["frame_hex"]


@titled("valid")
def test_the_builder_gives_the_same_frame_in_any_order(vector: dict[str, Any]) -> None:
    layout = Layout.of(vector["schema"])
    for seed in range(3):
        frame = build_shuffled(vector["tool_id"], layout, vector["arguments_json"], seed)
        assert frame.hex() == vector["frame_hex"]


@titled("refused_json")
def test_a_json_text_that_no_frame_holds_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(BtifError):
        btif.encode(1, ANY, vector["arguments_json"])


@pytest.mark.parametrize(("name", "expected"), VECTORS["tool_ids"].items())
def test_a_tools_id_follows_from_its_name(name: str, expected: int) -> None:
    assert btif.tool_id(name) == expected


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("[]", 0),
        ('{"a":1', 6),
        ('{"a":1,}', 7),
        ('{"a":[1,]}', 8),
        ('{"a":[1 2]}', 8),
        ('{"a":01}', 6),
        ('{"a":1.}', 6),
        ('{"a":+1}', 5),
        ('{"a":-}', 5),
        ('{"a":-Infinity}', 5),
        ('{"a":"\\ud83d"}', 5),
        ('{"a":"\ud83d"}', 5),
        ('{"a":"\n"}', 6),
        ('{"a":"\\x"}', 6),
        ('{"a":{"b":1,"\\u0062":2}}', 12),
        ('{"a":1} x', 8),
        ('{"a":1e' + "9" * 1100 + "}", 5),
        ('{"a":0.' + "1" * 1100 + "}", 5),
        ("{'a':1}", 1),
    ],
)
def test_bad_json_is_refused_at_its_offset(text: str, offset: int) -> None:
    with pytest.raises(BtifError) as refusal:
        btif.encode(1, ANY, text)
    assert refusal.value.offset == offset


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("1" + "0" * 1023, DecimalText("1" + "0" * 1023)),
        ("1." + "0" * 5000, 1.0),
        ("0." + "0" * 5000 + "1", DecimalText("1e-5001")),
        ("0e99999999999", 0.0),
        ("5e-324", 5e-324),
        ("4.9e-324", DecimalText("49e-325")),
        ("1e-400", DecimalText("1e-400")),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("9007199254740993.0", DecimalText("9007199254740993e0")),
        ("1E+2", 100.0),
        ("-12.50e400", DecimalText("-125e399")),
        ("1e0000" + "0" * 2000 + "2", 100.0),
    ],
)
def test_a_number_literal_gets_the_type_that_keeps_its_value(literal: str, value: object) -> None:
    frame = btif.encode(1, Layout.of({"properties": {"n": {}}}), f'{{"n":{literal}}}')
    (field,) = btif.decode(frame).fields
    assert (type(field), field) == (type(value), value)


def test_sixty_four_containers_in_an_undeclared_argument_are_one_too_many() -> None:
    with pytest.raises(BtifError, match="64"):
        btif.encode(1, ANY, '{"x":' + "[" * 64 + "]" * 64 + "}")
    frame = btif.encode(1, ANY, '{"x":' + "[" * 63 + "]" * 63 + "}")
    assert btif.decode(frame, ANY).tool_id == 1


def test_a_closed_schema_takes_no_undeclared_argument() -> None:
    layout = Layout.of({"properties": {"a": {}}, "additionalProperties": False})
    assert layout.is_closed
    with pytest.raises(BtifError, match="'b' is not declared") as refusal:
        btif.encode(1, layout, '{"a":1,"b":2}')
    assert refusal.value.offset == 11
    with pytest.raises(BtifError, match="at most 1"):
        btif.decode(btif.encode(1, Layout.of({"properties": {"a": {}}}), '{"b":2}'), layout)


def test_the_builder_knows_what_it_has_and_what_is_missing() -> None:
    builder = FrameBuilder(3, FLIGHT)
    assert builder.missing_required == {"airport"}
    builder.put("date", '"2024-06-20"')
    assert builder.has("date")
    assert not builder.has("airport")
    builder.put("airport", ' "PVG" ')
    assert builder.missing_required == frozenset()
    assert builder.build().hex() == "0000000300020103505647024db6"


@pytest.mark.parametrize("name", ["airport", "other"])
def test_the_builder_refuses_an_argument_given_twice(name: str) -> None:
    builder = FrameBuilder(3, FLIGHT)
    builder.put(name, '"PVG"')
    frame = builder.build()
    with pytest.raises(BtifError, match="twice"):
        builder.put(name, '"PVG"')
    assert builder.build() == frame


def test_a_refused_argument_leaves_its_slot_empty() -> None:
    builder = FrameBuilder(3, FLIGHT)
    with pytest.raises(BtifError):
        builder.put("airport", '"PVG" x')
    assert not builder.has("airport")


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_every_number_literal_keeps_its_value(literal: str) -> None:
    layout = Layout.of({"properties": {"n": {}}})
    text = btif.arguments_json(btif.encode(1, layout, f'{{"n":{literal}}}'), layout)
    assert Decimal(text[5:-1]) == Decimal(literal)
