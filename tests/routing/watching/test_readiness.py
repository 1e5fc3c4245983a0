"""When a tool may run: for each kind of tool, after which character of its call the frame comes, and which frame."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.messages import CallReady, RunsOn, ToolAnnotations, ToolPlan, ToolSpec
from midstream.modelfile.tokenizer import Tokenizer
from midstream.protocol.btif import Layout, decode_arguments, encode
from midstream.routing.watching.watch import Watches
from tests.routing.watching.reading import Reading, read, spec
from tests.support.cases import every_two_piece_cut

READ_ONLY = ToolAnnotations(read_only=True)
EAGER = ToolAnnotations(read_only=True, eager=True)
CAREFUL = ToolAnnotations()
EAGER_ALONE = ToolAnnotations(eager=True)


def schema(*names: str, required: tuple[str, ...] = (), is_open: bool = False) -> dict[str, Any]:
    properties: dict[str, Any] = {name: {"type": "integer"} for name in names}
    closing = {} if is_open else {"additionalProperties": False}
    return {"type": "object", "properties": properties, "required": list(required), **closing}


@pytest.fixture(scope="module")
def watches(tokenizer: Tokenizer) -> Watches:
    return Watches(tokenizer, constrains=False)


def call(arguments: str, name: str = "x") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def read_call(watches: Watches, tool: ToolSpec, text: str, pieces: list[str] | None = None) -> Reading:
    plan = ToolPlan("hermes", (tool,))
    return read(watches.make(plan, 0), pieces or list(text), plan=plan)


def ready_after(watches: Watches, tool: ToolSpec, arguments: str) -> list[tuple[str, dict[str, Any]]]:
    """(arguments text decoded when the frame came, the frame's arguments), read character by character."""
    text = call(arguments)
    start = text.index(arguments)
    found = []
    for event in read_call(watches, tool, text).events:
        if isinstance(event, CallReady):
            decoded = text[start : event.mark.token_index]
            found.append((decoded, decode_arguments(event.frame, Layout.of(tool.parameters))))
    return found


ONE_OF_TWO = '{"a": 1, "b": 2}'


@pytest.mark.parametrize(
    ("annotations", "parameters", "arguments", "expected"),
    [
        # Careful tools, whatever they say besides: when the arguments object has closed.
        (CAREFUL, schema("a", "b"), ONE_OF_TWO, [ONE_OF_TWO]),
        (EAGER_ALONE, schema("a", "b", required=("a",)), ONE_OF_TWO, [ONE_OF_TWO]),
        (ToolAnnotations(idempotent=True, destructive=False), schema("a"), '{"a": 1}', ['{"a": 1}']),
        # Read-only: when every declared argument is there and no other can come. A number ends with what follows.
        (READ_ONLY, schema("a", "b"), ONE_OF_TWO, ['{"a": 1, "b": 2}']),
        (READ_ONLY, schema("a", "b"), '{"b": 2, "a": 1 }', ['{"b": 2, "a": 1 ']),
        (READ_ONLY, schema("a", "b", required=("a",)), '{"a": 1}', ['{"a": 1}']),
        (READ_ONLY, schema("a", is_open=True), '{"a": 1 }', ['{"a": 1 }']),
        (READ_ONLY, schema("a", is_open=True), '{"a": 1, "z": 2}', ['{"a": 1, "z": 2}']),
        (READ_ONLY, schema(), "{}", ["{}"]),
        (READ_ONLY, schema(is_open=True), '{"z": 1 }', ['{"z": 1 }']),
        # Eager: when the required ones are there; a later argument makes another frame.
        (EAGER, schema("a", "b", required=("a",)), '{"a": 1 }', ['{"a": 1 ']),
        (EAGER, schema("a", "b", required=("a",)), '{"a": 1 , "b": 2 }', ['{"a": 1 ', '{"a": 1 , "b": 2 ']),
        (EAGER, schema("a", "b", required=("a", "b")), '{"a": 1 , "b": 2 }', ['{"a": 1 , "b": 2 ']),
        (EAGER, schema("a", "b", required=("a",)), '{"b": 2 , "a": 1 }', ['{"b": 2 , "a": 1 ']),
        (EAGER, schema("a", required=("a",), is_open=True), '{"a": 1 , "z": 2 }', ['{"a": 1 ', '{"a": 1 , "z": 2 ']),
        # Eager without a required argument is no more than read-only.
        (EAGER, schema("a", "b"), '{"a": 1 }', ['{"a": 1 }']),
        (EAGER, schema("a", "b"), '{"a": 1 , "b": 2 }', ['{"a": 1 , "b": 2 ']),
        (EAGER, schema(), "{}", ["{}"]),
        (EAGER, schema("a", is_open=True), '{"a": 1 }', ['{"a": 1 }']),
    ],
)
def test_a_frame_comes_as_soon_as_the_tool_may_run(
    watches: Watches, annotations: ToolAnnotations, parameters: dict[str, Any], arguments: str, expected: list[str]
) -> None:
    ready = ready_after(watches, spec("x", parameters, annotations), arguments)
    assert [decoded for decoded, _ in ready] == expected
    assert ready[-1][1] == json.loads(arguments)
    assert len({str(arguments) for _, arguments in ready}) == len(ready), "one frame was ready twice"


def test_a_string_is_complete_at_its_quote(watches: Watches) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    [(decoded, _)] = ready_after(watches, spec("x", parameters, READ_ONLY), '{"a": "PVG"}')
    assert decoded == '{"a": "PVG"'


@pytest.mark.parametrize("annotations", [CAREFUL, READ_ONLY, EAGER])
def test_a_clients_tool_is_never_ready_here(watches: Watches, annotations: ToolAnnotations) -> None:
    tool = spec("x", schema("a", required=("a",)), annotations, RunsOn.CLIENT)
    reading = read_call(watches, tool, call('{"a": 1}'))
    assert reading.kinds == ["Routed", "Named", "Closed"]
    assert reading.arguments_text(0) == '{"a": 1}'
    assert not reading.is_parked


def test_a_servers_call_parks_its_turn_and_sends_no_arguments_text(watches: Watches) -> None:
    reading = read_call(watches, spec("x", schema("a")), call('{"a": 1}'))
    assert reading.kinds == ["Routed", "Named", "Ready", "Closed"]
    assert reading.is_parked
    assert reading.arguments_text(0) == ""


@pytest.mark.parametrize("annotations", [CAREFUL, READ_ONLY, EAGER])
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": 1, "b": 2, "c": 3}',  # not declared, and nothing undeclared is allowed
        '{"c": 3}',
        '{"b": 2}',  # lacks what is required
        "{}",
        '{"a": 1, "b": 2, "b": 3}',
        '{"a": 1, "b": {"k": 1, "k": 2}}',
        '{"a": 1, "b": [{"k": {"l": 1, "l": 1}}]}',
        '{"a": 1, "b": "\\ud800"}',
        '{"a": 1, "b": }',
        '{"a": 1, "b": {"k": 2',
        '{"a": 1, "b": 2]',
    ],
)
def test_of_an_invalid_call_nothing_may_run(watches: Watches, annotations: ToolAnnotations, arguments: str) -> None:
    text = call(arguments)
    for pieces in [[text], list(text), *every_two_piece_cut(text)]:
        reading = read_call(watches, spec("x", schema("a", "b", required=("a",)), annotations), text, pieces)
        # What had been started early is called back.
        assert reading.kinds[-1] == "Abandoned"
        assert not reading.closed
        assert not reading.is_parked
        assert reading.text == text
        if annotations is CAREFUL:
            assert not reading.frames


def test_an_invalid_call_is_abandoned_at_its_first_fault(watches: Watches) -> None:
    text = call('{"a": 1, "c": 3, "b": 2}')
    tool = spec("x", schema("a", "b"), READ_ONLY)
    plan = ToolPlan("hermes", (tool,))
    fault = text.index(', "b"') + 1
    reading = read(watches.make(plan, 0), list(text[:fault]))
    assert [event.reason for event in reading.abandoned] == ["x has no argument 'c'"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{}", "x lacks its required arguments a, b"),
        ('{"a": 1}', "x lacks its required argument b"),
    ],
)
def test_a_missing_argument_is_named(watches: Watches, arguments: str, reason: str) -> None:
    tool = spec("x", schema("a", "b", required=("b", "a")))
    assert [event.reason for event in read_call(watches, tool, call(arguments)).abandoned] == [reason]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_name_that_is_no_text_is_an_invalid_call_not_a_crash(watches: Watches, is_open: bool) -> None:
    reading = read_call(watches, spec("x", schema("a", is_open=is_open)), call('{"\\ud800": 1}'))
    assert reading.kinds == ["Routed", "Named", "Abandoned"]


def test_arguments_may_be_as_deep_as_a_frame_and_no_deeper(watches: Watches) -> None:
    tool = spec("x", schema("a", is_open=True))
    deepest = '{"a": ' + "[" * 64 + "]" * 64 + "}"
    assert read_call(watches, tool, call(deepest)).frames == [encode(tool.tool_id, Layout.of(tool.parameters), deepest)]
    assert read_call(watches, tool, call(deepest.replace("[]", "[[]]"))).kinds[-1] == "Abandoned"


PARAMETERS = {
    "type": "object",
    "properties": {
        "airport": {"type": "string", "enum": ["PVG", "TXL"]},
        "date": {"type": "string", "format": "date"},
        "limit": {"type": "number"},
        "more": {"type": "object", "properties": {"since": {"type": "string", "format": "date"}}},
    },
}
VALUES = {
    "airport": st.sampled_from(["PVG", "TXL", "ZRH"]),
    "date": st.dates().map(str) | st.just("soon"),
    "limit": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    "more": st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | st.text(max_size=3), max_size=2),
    "other": st.text(max_size=5) | st.integers(),
}


@given(st.fixed_dictionaries({}, optional=VALUES).flatmap(lambda d: st.permutations(list(d.items()))), st.booleans())
def test_the_frame_is_that_of_the_arguments_text(
    watches: Watches, arguments: list[tuple[str, Any]], ascii_only: bool
) -> None:
    text = json.dumps(dict(arguments), ensure_ascii=ascii_only)
    for annotations in (CAREFUL, EAGER):
        tool = spec("x", {**PARAMETERS, "required": ["airport"]}, annotations)
        reading = read_call(watches, tool, text, [call(text)])
        if "airport" in dict(arguments):
            assert reading.frames[-1] == encode(tool.tool_id, Layout.of(tool.parameters), text)
            assert len(set(reading.frames)) == len(reading.frames)
        else:
            assert reading.frames == []
