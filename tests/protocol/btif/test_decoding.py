import json
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.errors import BtifError
from midstream.protocol import btif
from midstream.protocol.btif import ABSENT, EnumIndex, Layout
from tests.protocol.btif.strategies import argument_texts, arguments, tool_schemas
from tests.protocol.btif.support import ANY, FLIGHT, build_shuffled, mutate, titled, typed


@titled("valid")
def test_a_vectors_frame_decodes_to_the_arguments_and_back(vector: dict[str, Any]) -> None:
    layout, frame = Layout.of(vector["schema"]), bytes.fromhex(vector["frame_hex"])
    text = btif.arguments_json(frame, layout)
    assert btif.decode(frame).tool_id == vector["tool_id"]
    assert json.loads(text) == json.loads(vector["arguments_json"])
    assert btif.encode(vector["tool_id"], layout, text) == frame


@titled("invalid")
def test_an_invalid_frame_is_refused_with_an_offset_inside_it(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame_hex"])
    with pytest.raises(BtifError) as refusal:
        btif.decode(frame)
    assert 0 <= refusal.value.offset <= len(frame)
    with pytest.raises(BtifError):
        btif.dump(frame)


def test_decimals_become_ints_and_decimals() -> None:
    layout = Layout.of({"properties": {"i": {}, "d": {}}})
    frame = btif.encode(1, layout, '{"i": 123456789012345678901234567890, "d": [1e400]}')
    assert btif.decode_arguments(frame, layout) == {
        "i": 123456789012345678901234567890,
        "d": [Decimal("1e400")],
    }


def test_an_exponent_that_no_decimal_has_is_an_error_only_as_a_python_value() -> None:
    layout = Layout.of({"properties": {"n": {}}})
    text = '{"n":1e' + "9" * 30 + "}"
    frame = btif.encode(1, layout, text)
    assert btif.arguments_json(frame, layout) == text
    with pytest.raises(BtifError, match="out of range"):
        btif.decode_arguments(frame, layout)


def test_absent_and_enums_without_a_schema_have_their_own_values() -> None:
    layout = Layout.of({"properties": {"a": {}, "b": {"enum": ["x", "y"]}}})
    frame = btif.encode(1, layout, '{"b":"y"}')
    assert btif.decode(frame).fields == (ABSENT, EnumIndex(1))
    assert btif.decode(frame, layout).fields == (ABSENT, "y")


@pytest.mark.parametrize(
    ("frame_hex", "fault"),
    [
        ("00000003000201035056470 10a323032342d30362d3230", "should be date16"),
        ("000000030002 01016100", "trailing absent"),
        ("000000030003 01016100 0b00", "are none"),
        ("000000030003 01016100 0b01 0464617465 04", "declared argument"),
        ("000000030003 01016100 04", "not an object"),
        ("000000030004 01016100 0b0101780404", "at most 3"),
        ("000000030001 024db6", "date16 where"),
        ("000000030001 0900", "enum index"),
        ("000000030001 0a0100", "absent inside"),
    ],
)
def test_with_the_schema_only_the_canonical_frame_is_accepted(frame_hex: str, fault: str) -> None:
    with pytest.raises(BtifError, match=fault):
        btif.decode(bytes.fromhex(frame_hex.replace(" ", "")), FLIGHT)


@pytest.mark.parametrize("name", ["", "a"])
def test_a_declared_argument_is_not_among_the_undeclared_ones_whatever_its_name(name: str) -> None:
    layout = Layout.of({"properties": {name: {}}})
    key = bytes([len(name)]) + name.encode()
    frame = bytes.fromhex("00000003 0002 07 0b01") + key + b"\x07"
    with pytest.raises(BtifError, match="declared argument"):
        btif.decode(frame, layout)


def test_a_string_of_the_enum_must_be_its_first_index() -> None:
    layout = Layout.of({"properties": {"u": {"enum": ["k", "k", 7, "c"]}}})
    for frame_hex in ("0000000100010101 6b", "0000000100010901", "0000000100010902", "0000000100010904"):
        with pytest.raises(BtifError, match="enum"):
            btif.decode(bytes.fromhex(frame_hex.replace(" ", "")), layout)
    assert btif.decode(bytes.fromhex("0000000100010903"), layout).fields == ("c",)


def test_a_dump_shows_offsets_tags_names_and_values() -> None:
    frame = bytes.fromhex("0000000300020103505647024db6")
    assert btif.dump(frame, FLIGHT).splitlines() == [
        "0000  tool 0x00000003, 2 fields, 14 bytes",
        '0006  str8     airport  "PVG"',
        "000b  date16   date     2024-06-20",
    ]
    assert "field 0" in btif.dump(frame)


def test_a_dump_passes_no_control_characters_on() -> None:
    frame = btif.encode(1, ANY, '{"\\u001b[2J":{"\\n":"\\u009b\\u007f"}}')
    assert all(line.isprintable() for line in btif.dump(frame, ANY).splitlines())


@given(tool_schemas, arguments)
def test_decoding_gives_back_what_was_encoded_with_its_types(schema: dict[str, Any], given_: dict[str, Any]) -> None:
    layout = Layout.of(schema)
    frame = btif.encode(7, layout, json.dumps(given_))
    assert typed(btif.decode_arguments(frame, layout)) == typed(given_)


@given(tool_schemas, argument_texts, st.integers(0, 99))
def test_a_valid_frame_encodes_again_to_the_same_bytes(schema: dict[str, Any], text: str, seed: int) -> None:
    layout = Layout.of(schema)
    frame = btif.encode(7, layout, text)
    btif.decode(frame)
    assert btif.encode(7, layout, btif.arguments_json(frame, layout)) == frame
    assert build_shuffled(7, layout, text, seed) == frame


@given(tool_schemas, argument_texts, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_mutated_frame_is_refused_or_is_canonical(schema: dict[str, Any], text: str, rng: random.Random) -> None:
    layout = Layout.of(schema)
    frame = btif.encode(7, layout, text)
    for _ in range(40):
        mutant = mutate(frame, rng)
        try:
            btif.decode(mutant)
            again = btif.arguments_json(mutant, layout)
        except BtifError:
            continue
        assert btif.encode(int.from_bytes(mutant[:4], "big"), layout, again) == mutant
