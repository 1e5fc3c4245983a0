"""What may be written in a call: every way through the grammar is a valid call, and the one way is forced."""

import json
from typing import Any

import pytest

from midstream.errors import RequestError
from midstream.messages import ChoiceMode, ToolAnnotations, ToolChoice, ToolPlan
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.dialects import dialect_named
from midstream.routing.watching.grammar import MAX_CACHED_GRAMMARS, MAX_CALLS_A_TURN, Grammars, check_tool
from midstream.routing.watching.watch import Watches
from tests.routing.watching.reading import spec
from tests.routing.watching.schemas import MARKER, ONLY_B, SCHEMAS, STRING, call, object_of
from tests.routing.watching.walking import Walk, Wanders, Writes
from tests.support.tokenizers import with_added_tokens

REQUIRED = ToolChoice(ChoiceMode.REQUIRED)


@pytest.fixture(scope="module")
def watches(tokenizer: Tokenizer) -> Watches:
    return Watches(tokenizer)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("mode", [ChoiceMode.REQUIRED, ChoiceMode.AUTO])
def test_every_way_through_the_grammar_is_a_valid_call(
    tokenizer: Tokenizer, watches: Watches, name: str, mode: ChoiceMode
) -> None:
    parameters, is_valid = SCHEMAS[name]
    plan = ToolPlan("hermes", (spec("x", parameters), spec("other")), ToolChoice(mode), parallel=False)
    for seed in range(5):
        walk = Walk(tokenizer, watches, plan)
        if mode is ChoiceMode.AUTO:
            walk.go(Writes(f"Let me see.\n{MARKER}", ends=False))
        walk.go(Wanders(seed, walk.token_bytes))
        reading = walk.reading
        assert reading.kinds == ["Routed", "Named", "Ready", "Closed"], walk.text
        [(tool, arguments)] = reading.runs
        assert tool == "other" or is_valid(arguments), walk.text
        assert walk.has_ended
        assert reading.is_parked


def test_dates_are_real_enough_to_be_frames(tokenizer: Tokenizer, watches: Watches) -> None:
    plan = ToolPlan("hermes", (spec("x", SCHEMAS["date"][0]),), REQUIRED, parallel=False)
    for text in ('{"a": "2026-12-02"}', '{"a": "tomorrow"}', '{"a": "2026-13-02"}'):
        writes = Writes(call(text))
        Walk(tokenizer, watches, plan).go(writes)
        assert writes.was_refused == (text != '{"a": "2026-12-02"}'), text


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        (call('{"a": "x"}'), True),
        (call('{"a": "\\"\\\\\\n"}'), True),
        (call('{"a": "é😀"}'), True),
        (call('{"a": "</tool_call> <tool_call>"}'), True),
        (call('{"a":"x"}'), False),
        (call('{ "a": "x"}'), False),
        (call('{"a": "x", "b": 1}'), False),
        (call('{"a": 1}'), False),
        (call("{}"), False),
        (call('{"a": "\\ud800"}'), False),
        (call(name="y"), False),
        (call().replace("arguments", "parameters"), False),
        (call().replace("\n", ""), False),
        (call() + "\n\n", False),
        (f"text {call()}", False),
    ],
)
def test_a_required_call_is_canonical(tokenizer: Tokenizer, watches: Watches, text: str, is_allowed: bool) -> None:
    walk = Walk(tokenizer, watches, ToolPlan("hermes", (spec("x", object_of(a=STRING)),), REQUIRED))
    walk.go(Writes(text))
    assert (walk.text == text) == is_allowed


def test_what_can_only_be_so_is_forced(tokenizer: Tokenizer, watches: Watches) -> None:
    choice = ToolChoice(ChoiceMode.NAMED, ("x",))
    walk = Walk(tokenizer, watches, ToolPlan("hermes", (spec("x", ONLY_B), spec("y", ONLY_B)), choice))
    walk.take_forced()
    walk.go(Writes(call()))
    assert walk.text == call()
    assert walk.has_ended
    assert walk.num_forced > 0.8 * len(walk.token_ids)
    assert walk.reading.runs == [("x", {"a": "b"})]


def test_forced_tokens_are_those_that_the_text_is_written_in(tokenizer: Tokenizer, watches: Watches) -> None:
    choice = ToolChoice(ChoiceMode.NAMED, ("x",))
    walk = Walk(tokenizer, watches, ToolPlan("hermes", (spec("x", object_of(a=STRING)),), choice))
    walk.take_forced()
    canonical = tokenizer.encode(call('{"a": "PVG"}'))
    assert walk.token_ids == canonical[: len(walk.token_ids)]
    assert walk.text.startswith('<tool_call>\n{"name": "x", "arguments": {"a":')


def test_a_named_choice_makes_one_call_of_that_tool(tokenizer: Tokenizer, watches: Watches) -> None:
    tools = (spec("x", ONLY_B), spec("y", ONLY_B))
    for seed in range(5):
        walk = Walk(tokenizer, watches, ToolPlan("hermes", tools, ToolChoice(ChoiceMode.NAMED, ("y",))))
        walk.go(Wanders(seed, walk.token_bytes))
        assert walk.text == call(name="y")


def test_required_ends_after_so_many_calls(tokenizer: Tokenizer, watches: Watches) -> None:
    plan = ToolPlan("hermes", (spec("x"),), REQUIRED)
    walk = Walk(tokenizer, watches, plan).go(Writes("\n".join([call("{}")] * (MAX_CALLS_A_TURN + 3))))
    assert walk.has_ended
    assert walk.text == "\n".join([call("{}")] * MAX_CALLS_A_TURN)
    assert len(walk.reading.closed) == MAX_CALLS_A_TURN


@pytest.mark.parametrize("mode", [ChoiceMode.REQUIRED, ChoiceMode.AUTO])
@pytest.mark.parametrize("between", ["", "\n", " and "])
def test_without_parallel_calls_the_turn_ends_after_one(
    tokenizer: Tokenizer, watches: Watches, mode: ChoiceMode, between: str
) -> None:
    plan = ToolPlan("hermes", (spec("x", ONLY_B),), ToolChoice(mode), parallel=False)
    walk = Walk(tokenizer, watches, plan).go(Writes(call() + between + call()))
    assert walk.has_ended
    assert walk.text.startswith(call())
    assert len(walk.reading.closed) == 1
    assert len(walk.reading.routed) == 1


def test_required_in_an_array_dialect(tokenizer: Tokenizer, watches: Watches) -> None:
    plan = ToolPlan("required_json", (spec("x", ONLY_B),), REQUIRED)
    text = '[{"name": "x", "parameters": {"a": "b"}}, {"name": "x", "parameters": {"a": "b"}}]'
    walk = Walk(tokenizer, watches, plan).go(Writes(text))
    assert walk.text == text
    assert len(walk.reading.closed) == 2


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_the_mask_allows_never_breaks_the_grammar(tokenizer: Tokenizer, watches: Watches, name: str) -> None:
    plan = ToolPlan("hermes", (spec("x", SCHEMAS[name][0]),), REQUIRED)
    walk = Walk(tokenizer, watches, plan)
    wanders = Wanders(99, walk.token_bytes)
    while not walk.has_ended:
        walk.take_forced()
        if walk.has_ended or len(walk.token_ids) > 150:
            break
        allowed = walk.allowed()
        assert allowed is not None, f"unconstrained after {walk.text!r}"
        token_id = wanders(walk, allowed)
        assert token_id is not None
        walk.take(token_id)
    assert not walk.reading.abandoned


# --- frames that are single tokens, as Qwen has them ---


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    return with_added_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])


@pytest.mark.parametrize("mode", [ChoiceMode.AUTO, ChoiceMode.REQUIRED, ChoiceMode.NONE])
def test_tokens_that_only_the_server_may_write_are_banned(qwen: Tokenizer, mode: ChoiceMode) -> None:
    watch = Watches(qwen).make(ToolPlan("hermes", (spec("x"),), ToolChoice(mode)), 0)
    banned = {qwen.added_tokens["<tool_response>"], qwen.added_tokens["</tool_response>"]}
    if mode is ChoiceMode.NONE:
        banned.add(qwen.added_tokens["<tool_call>"])
    assert set(watch.banned_token_ids) == banned


def test_frames_that_are_ordinary_text_ban_nothing(watches: Watches) -> None:
    for mode in (ChoiceMode.AUTO, ChoiceMode.NONE):
        assert watches.make(ToolPlan("hermes", (spec("x"),), ToolChoice(mode)), 0).banned_token_ids == ()


def test_a_marker_that_is_one_token_opens_a_call(qwen: Tokenizer) -> None:
    walk = Walk(qwen, Watches(qwen), ToolPlan("hermes", (spec("x", ONLY_B),)))
    walk.take(qwen.added_tokens["<tool_call>"])
    walk.take_forced()
    walk.go(Writes(call()))
    assert walk.text == call()
    assert qwen.added_tokens["</tool_call>"] in walk.token_ids
    assert walk.reading.runs == [("x", {"a": "b"})]


def test_a_required_marker_that_is_one_token_is_forced_as_one(qwen: Tokenizer) -> None:
    walk = Walk(qwen, Watches(qwen), ToolPlan("hermes", (spec("x", ONLY_B),), REQUIRED))
    walk.take_forced()
    assert walk.token_ids[0] == qwen.added_tokens["<tool_call>"]


# --- upkeep ---


def test_the_cache_of_grammars_is_bounded_and_keeps_what_is_used(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer)
    dialect = dialect_named("hermes")

    def use(number: int) -> None:
        plan = ToolPlan("hermes", (spec(f"tool_{number}"),), REQUIRED)
        assert not grammars.matcher(dialect, plan).is_broken

    for number in range(MAX_CACHED_GRAMMARS + 10):
        use(0)
        use(number)
    assert len(grammars._compiled) == MAX_CACHED_GRAMMARS
    first = next(iter(grammars._compiled))
    use(0)
    assert next(iter(grammars._compiled)) == first, "the one in use was the next to go"


def test_two_turns_of_one_grammar_do_not_meet(tokenizer: Tokenizer, watches: Watches) -> None:
    plan = ToolPlan("hermes", (spec("x", object_of(a=STRING)),), REQUIRED)
    one, other = Walk(tokenizer, watches, plan), Walk(tokenizer, watches, plan)
    one.go(Writes('<tool_call>\n{"name": "x", "arguments": {"a": "hello', ends=False))
    other.go(Writes(call('{"a": "PVG"}')))
    one.go(Writes(call('{"a": "hello you"}')))
    assert [walk.reading.runs for walk in (one, other)] == [[("x", {"a": "hello you"})], [("x", {"a": "PVG"})]]


@pytest.mark.parametrize("parameters", [schema for schema, _ in SCHEMAS.values()], ids=SCHEMAS)
def test_a_schema_that_can_be_followed_is_accepted(parameters: dict[str, Any]) -> None:
    check_tool(spec("x", parameters), dialect_named("hermes"), "tools.0")


@pytest.mark.parametrize(
    "properties",
    [{"a": {"type": "strin"}}, {"a": {"$ref": "#/$defs/none"}}, {"a": 5}, {"a": {"enum": "PVG"}}],
)
def test_a_schema_that_is_none_is_the_callers_error(properties: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": properties}
    with pytest.raises(RequestError, match="'x'") as caught:
        check_tool(spec("x", parameters), dialect_named("hermes"), "tools.0.function.parameters")
    assert caught.value.param == "tools.0.function.parameters"


def test_a_schema_cannot_switch_the_canonical_form_off(tokenizer: Tokenizer, watches: Watches) -> None:
    parameters = {**ONLY_B, "x-guidance": {"whitespace_flexible": True, "item_separator": " ; "}}
    walk = Walk(tokenizer, watches, ToolPlan("hermes", (spec("x", parameters),), REQUIRED, parallel=False))
    walk.go(Wanders(1, walk.token_bytes))
    assert walk.text == call()


def test_eager_and_careful_tools_share_one_grammar(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer)
    for annotations in (ToolAnnotations(), ToolAnnotations(read_only=True, eager=True)):
        grammars.matcher(dialect_named("hermes"), ToolPlan("hermes", (spec("x", ONLY_B, annotations),)))
    assert len(grammars._compiled) == 1


def test_arguments_of_a_walk_are_json_to_a_strict_reader(tokenizer: Tokenizer, watches: Watches) -> None:
    plan = ToolPlan("hermes", (spec("x", SCHEMAS["string"][0]),), REQUIRED, parallel=False)
    for seed in range(10):
        walk = Walk(tokenizer, watches, plan)
        walk.go(Wanders(seed, walk.token_bytes))
        body = walk.text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        assert set(json.loads(body)) == {"name", "arguments"}
