"""The watch over a turn: when a call is routed, how it is numbered, and what becomes of a cut or an unknown name."""

import pytest

from midstream.messages import (
    CallNamed,
    CallRouted,
    ChoiceMode,
    FinishReason,
    RunsOn,
    TextDelta,
    ToolAnnotations,
    ToolChoice,
    ToolPlan,
    ToolSpec,
)
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.watch import Watches
from tests.routing.watching.reading import Reading, read, spec
from tests.support.cases import every_two_piece_cut

ANY = {"type": "object", "properties": {"a": {"type": "integer"}}}
READ_ONLY = ToolAnnotations(read_only=True)
TOOLS = tuple(spec(name, ANY) for name in ("get", "get_all", "put"))
CLIENT = tuple(spec(name, ANY, runs_on=RunsOn.CLIENT) for name in ("get", "get_all", "put"))


@pytest.fixture(scope="module")
def watches(tokenizer: Tokenizer) -> Watches:
    return Watches(tokenizer, constrains=False)


def call(name: str, arguments: str = '{"a": 1}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def read_turn(
    watches: Watches,
    pieces: str | list[str],
    *,
    plan: ToolPlan | None = None,
    end: FinishReason = FinishReason.STOP,
    num_earlier_calls: int = 0,
    stop: tuple[str, ...] = (),
) -> Reading:
    plan = plan or ToolPlan("hermes", TOOLS)
    return read(watches.make(plan, num_earlier_calls), list(pieces), plan=plan, end=end, stop=stop)


@pytest.mark.parametrize(
    ("name", "decoded"),
    [("put", "p"), ("get_all", "get_"), ("get", 'get"')],
)
def test_a_call_is_routed_at_the_character_that_leaves_one_tool(watches: Watches, name: str, decoded: str) -> None:
    text = call(name)
    [routed] = [event for event in read_turn(watches, text).events if isinstance(event, CallRouted)]
    assert routed.name == name
    assert text[: routed.mark.token_index].endswith(f'"name": "{decoded}')


def test_a_name_is_shown_when_it_is_complete(watches: Watches) -> None:
    events = read_turn(watches, call("put").partition('ut"')[0]).events
    assert [event for event in events if isinstance(event, CallNamed)] == []
    events = read_turn(watches, call("put").partition('", ')[0] + '"', end=FinishReason.LENGTH).events
    assert [event.name for event in events if isinstance(event, CallNamed)] == ["put"]


@pytest.mark.parametrize("name", ["putt", "", "Put", "nope", "get_", "put\\u0000"])
def test_a_name_that_is_no_tools_is_text(watches: Watches, name: str) -> None:
    text = call(name) + " end"
    for pieces in [[text], list(text), *every_two_piece_cut(text)]:
        reading = read_turn(watches, pieces)
        assert reading.text == text
        assert reading.kinds in ([], ["Routed", "Abandoned"])
        assert not reading.is_parked


def test_a_name_that_was_routed_and_went_on_is_abandoned(watches: Watches) -> None:
    reading = read_turn(watches, call("putt"))
    assert reading.kinds == ["Routed", "Abandoned"]
    assert "putt" in reading.abandoned[0].reason


def test_the_numbers_of_calls_go_on_from_earlier_turns(watches: Watches) -> None:
    reading = read_turn(watches, call("put") + call("putt") + call("get"), num_earlier_calls=3)
    assert reading.names == {3: "put", 5: "get"}
    assert reading.closed == [3, 5]


def test_a_call_that_was_none_takes_no_other_ones_room(watches: Watches) -> None:
    needy = {**ANY, "required": ["a"]}
    text = call("put", "{}") + call("put") + call("put")
    plan = ToolPlan("hermes", (spec("put", needy),), parallel=False)
    for pieces in [[text], list(text), *every_two_piece_cut(text)]:
        reading = read_turn(watches, pieces, plan=plan)
        assert reading.closed == [1]
        assert reading.text == call("put", "{}") + call("put")


def test_a_turn_with_calls_of_both_kinds_parks(watches: Watches) -> None:
    plan = ToolPlan("hermes", (spec("mine", ANY), spec("yours", ANY, runs_on=RunsOn.CLIENT)))
    reading = read_turn(watches, call("yours") + call("mine"), plan=plan)
    assert reading.is_parked
    assert [name for name, _ in reading.runs] == ["mine"]
    assert not read_turn(watches, call("yours"), plan=plan).is_parked


@pytest.mark.parametrize("tools", [TOOLS, CLIENT])
def test_a_call_that_is_cut_is_abandoned_and_its_name_is_not_text_too(
    watches: Watches, tools: tuple[ToolSpec, ...]
) -> None:
    plan = ToolPlan("hermes", tools)
    text = "Hi. " + call("put").removesuffix("}\n</tool_call>").removesuffix("}")
    reading = read_turn(watches, text, plan=plan, end=FinishReason.LENGTH)
    assert reading.kinds == ["Routed", "Named", "Abandoned"]
    assert reading.abandoned[0].is_cut
    assert reading.text == "Hi. "


def test_a_call_that_is_cut_before_it_is_named_is_text(watches: Watches) -> None:
    text = 'Hi. <tool_call>\n{"name": "pu'
    reading = read_turn(watches, text, end=FinishReason.LENGTH)
    assert reading.kinds == ["Routed", "Abandoned"]
    assert reading.text == text


def test_a_turn_that_ends_inside_a_call_gives_it_back_as_text(watches: Watches) -> None:
    text = 'Hi. <tool_call>\n{"name": "put", "arguments": {"a": 1'
    reading = read_turn(watches, text)
    assert reading.kinds == ["Routed", "Named", "Abandoned"]
    assert not reading.abandoned[0].is_cut
    assert reading.text == text


def test_a_cut_after_a_call_leaves_the_call(watches: Watches) -> None:
    reading = read_turn(watches, call("put") + " and", end=FinishReason.LENGTH)
    assert reading.kinds == ["Routed", "Named", "Ready", "Closed"]
    assert not reading.is_parked


def test_choice_none_sees_text_and_reasoning_alone(watches: Watches) -> None:
    plan = ToolPlan("hermes", TOOLS, ToolChoice(ChoiceMode.NONE), reasoning_markers=("<think>", "</think>"))
    reading = read_turn(watches, f"<think>hm</think>{call('put')}", plan=plan)
    assert reading.reasoning == "hm"
    assert reading.text == call("put")
    assert reading.kinds == []


@pytest.mark.parametrize("held", range(1, len(call("nope"))))
def test_a_call_that_is_none_held_back_by_a_stop_string_is_text(watches: Watches, held: int) -> None:
    # The end of the turn looks like the beginning of a stop string: it is read when the turn is over.
    text = call("nope")
    reading = read_turn(watches, text, stop=(text[-held:] + "X",))
    assert reading.text == text
    assert reading.kinds == []


@pytest.mark.parametrize("held", range(1, len(call("put"))))
def test_a_call_held_back_by_a_stop_string_is_the_same_call(watches: Watches, held: int) -> None:
    text = call("put")
    reading = read_turn(watches, text, stop=(text[-held:] + "X",))
    assert reading.kinds == ["Routed", "Named", "Ready", "Closed"]
    assert reading.is_parked


def test_a_stop_string_cuts_a_call_in_two(watches: Watches) -> None:
    reading = read_turn(watches, f"Hi. {call('put')}", stop=('"a": 1',))
    assert reading.finish is FinishReason.STOP
    assert reading.kinds == ["Routed", "Named", "Abandoned"]
    assert reading.text == "Hi. "
    assert not reading.is_parked


def test_the_same_turn_gives_the_same_events_twice(watches: Watches) -> None:
    text = f"a{call('put')}b{call('get_all')}"
    assert read_turn(watches, text).events == read_turn(watches, text).events


def test_text_comes_out_as_soon_as_it_can_be_no_marker(watches: Watches) -> None:
    watch = watches.make(ToolPlan("hermes", TOOLS), 0)
    reading = read(watch, ["a <", "tool", " <tool_call", "x"])
    assert [event.text for event in reading.events if isinstance(event, TextDelta)] == [
        "a ",
        "<tool ",
        "<tool_callx",
    ]
