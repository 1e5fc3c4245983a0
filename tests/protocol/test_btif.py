import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.errors import BtifError
from midstream.protocol import btif
from midstream.protocol.btif import ABSENT, DecimalText, EnumIndex, FrameBuilder, Layout
from tests.protocol.strategies import argument_texts, arguments, tool_schemas

VECTORS = json.loads((Path(__file__).parent / "btif_vectors.json").read_text())
ANY = Layout.of({})
FLIGHT = Layout.of(
    {
        "properties": {"airport": {"type": "string"}, "date": {"type": "string", "format": "date"}},
        "required": ["airport"],
    }
)


def titled(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", VECTORS[kind], ids=[vector["title"] for vector in VECTORS[kind]])


def build_shuffled(tool_id: int, layout: Layout, arguments_json: str, seed: int) -> bytes:
    items = list(json.loads(arguments_json, parse_int=Literal, parse_float=Literal).items())
    random.Random(seed).shuffle(items)
    builder = FrameBuilder(tool_id, layout)
    for name, value in items:
        builder.put(name, text_of(value))
    return builder.build()


class Literal(str):
    """A number that keeps the text it was written in."""


def text_of(value: Any) -> str:
    match value:
        case Literal():
            return str(value)
        case dict():
            return "{" + ",".join(f"{json.dumps(k)}: {text_of(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + " , ".join(map(text_of, value)) + "]"
        case _:
            return json.dumps(value)


@titled("valid")
def test_arguments_encode_to_the_vectors_frame(vector: dict[str, Any]) -> None:
    frame = btif.encode(vector["tool_id"], Layout.of(vector["schema"]), vector["arguments_json"])
    assert frame.hex() == vector["frame_hex"]


@titled("valid")
def test_a_vectors_frame_decodes_to_the_arguments_and_back(vector: dict[str, Any]) -> None:
    layout, frame = Layout.of(vector["schema"]), bytes.fromhex(vector["frame_hex"])
    text = btif.arguments_json(frame, layout)
    assert btif.decode(frame).tool_id == vector["tool_id"]
    assert json.loads(text) == json.loads(vector["arguments_json"])
    assert btif.encode(vector["tool_id"], layout, text) == frame


@titled("valid")
def test_the_builder_gives_the_same_frame_in_any_order(vector: dict[str, Any]) -> None:
    layout = Layout.of(vector["schema"])
    for seed in range(3):
        frame = build_shuffled(vector["tool_id"], layout, vector["arguments_json"], seed)
        assert frame.hex() == vector["frame_hex"]


@titled("invalid")
def test_an_invalid_frame_is_refused_with_an_offset_inside_it(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame_hex"])
    with pytest.raises(BtifError) as refusal:
        btif.decode(frame)
    assert 0 <= refusal.value.offset <= len(frame)
    with pytest.raises(BtifError):
        btif.dump(frame)


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


def test_sixty_four_containers_in_an_undeclared_argument_are_one_too_many() -> None:
    with pytest.raises(BtifError, match="64"):
        btif.encode(1, ANY, '{"x":' + "[" * 64 + "]" * 64 + "}")
    frame = btif.encode(1, ANY, '{"x":' + "[" * 63 + "]" * 63 + "}")
    assert btif.decode(frame, ANY).tool_id == 1


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


def test_a_string_of_the_enum_must_be_its_first_index() -> None:
    layout = Layout.of({"properties": {"u": {"enum": ["k", "k", 7, "c"]}}})
    for frame_hex in ("0000000100010101 6b", "0000000100010901", "0000000100010902", "0000000100010904"):
        with pytest.raises(BtifError, match="enum"):
            btif.decode(bytes.fromhex(frame_hex.replace(" ", "")), layout)
    assert btif.decode(bytes.fromhex("0000000100010903"), layout).fields == ("c",)


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


def typed(value: Any) -> Any:
    match value:
        case dict():
            return {key: typed(item) for key, item in value.items()}
        case list():
            return [typed(item) for item in value]
        case _:
            return type(value).__name__, repr(value)


@given(tool_schemas, argument_texts, st.integers(0, 99))
def test_a_valid_frame_encodes_again_to_the_same_bytes(schema: dict[str, Any], text: str, seed: int) -> None:
    layout = Layout.of(schema)
    frame = btif.encode(7, layout, text)
    btif.decode(frame)
    assert btif.encode(7, layout, btif.arguments_json(frame, layout)) == frame
    assert build_shuffled(7, layout, text, seed) == frame


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_every_number_literal_keeps_its_value(literal: str) -> None:
    layout = Layout.of({"properties": {"n": {}}})
    text = btif.arguments_json(btif.encode(1, layout, f'{{"n":{literal}}}'), layout)
    assert Decimal(text[5:-1]) == Decimal(literal)


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


def mutate(frame: bytes, rng: random.Random) -> bytes:
    mutant = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(mutant)) if mutant else 0
        match rng.randrange(4):
            case 0 if mutant:
                mutant[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), rng.randrange(13)])
            case 1:
                del mutant[at : at + rng.randint(1, 4)]
            case 2:
                mutant[at:at] = rng.randbytes(rng.randint(1, 4))
            case _:
                mutant += mutant[at : at + 8]
    return bytes(mutant)
