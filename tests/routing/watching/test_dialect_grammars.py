"""What each dialect's grammar lets a model write: its own syntax, to the byte, and every way through it is a call."""

import json
import re
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import Any

import pytest

from midstream.errors import RequestError
from midstream.messages import ChoiceMode, ToolChoice, ToolPlan
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.dialects import DIALECTS, marker_ids
from midstream.routing.watching.grammar import check_tool
from midstream.routing.watching.watch import Watches
from tests.routing.watching.reading import spec
from tests.routing.watching.schemas import STRING, object_of
from tests.routing.watching.walking import Walk, Wanders, Writes
from tests.support.tokenizers import with_added_tokens

INTEGER = {"type": "integer"}
PARAMETERS = object_of(["a"], a=STRING, n=INTEGER)
ARGUMENTS = {"a": "b <c>", "n": 3}
JSON = '{"a": "b <c>", "n": 3}'

OBJECT = f'{{"name": "x", "arguments": {JSON}}}'
PARAMETERS_OBJECT = f'{{"name": "x", "parameters": {JSON}}}'
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
DEEPSEEK_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"

# One call of `x`, as a turn that has to be made of calls.
TURNS = {
    "hermes": f"<tool_call>\n{OBJECT}\n</tool_call>",
    "llama3_json": PARAMETERS_OBJECT,
    "gigachat3": f"<|function_call|>{OBJECT}",
    "xlam": f"[{OBJECT}]",
    "required_json": f"[{PARAMETERS_OBJECT}]",
    "mistral_v3": f"[TOOL_CALLS] [{OBJECT}]",
    "granite": f"<|tool_call|>[{OBJECT}]",
    "granite31": f"<tool_call>[{OBJECT}]",
    "mistral_v11": f"[TOOL_CALLS]x[ARGS]{JSON}",
    "deepseek_v3": f"{DEEPSEEK}function<｜tool▁sep｜>x\n```json\n{JSON}\n```{DEEPSEEK_END}",
    "deepseek_v31": f"{DEEPSEEK}x<｜tool▁sep｜>{JSON}{DEEPSEEK_END}",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.x:0<|tool_call_argument_begin|>"
    f"{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    "harmony": f"<|channel|>commentary to=functions.x <|constrain|>json<|message|>{JSON}",
    "qwen3_coder": "<tool_call>\n<function=x>\n<parameter=a>\nb <c>\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm45": "<tool_call>x\n<arg_key>a</arg_key>\n<arg_value>b <c></arg_value>\n<arg_key>n</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>",
    "glm47": "<tool_call>x<arg_key>a</arg_key><arg_value>b <c></arg_value><arg_key>n</arg_key>"
    "<arg_value>3</arg_value></tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="x">\n<parameter name="a">b <c></parameter>\n'
    '<parameter name="n">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "pythonic": '[x(a="b <c>", n=3)]',
    "smollm3": '<code>x(a="b <c>", n=3)</code>',
    "functiongemma": "<start_function_call>call:x{a:<escape>b <c><escape>,n:3}<end_function_call>",
    "gemma4": '<|tool_call>call:x{a:<|"|>b <c><|"|>,n:3}<tool_call|>',
}
# Kinds of values whose random walks end: a string between tags goes on until it happens to be closed.
SCHEMAS = {
    "values": object_of(
        ["n", "on"],
        n=INTEGER,
        x={"type": "number", "minimum": -1000, "maximum": 1000},
        on={"type": "boolean"},
        kind={"enum": ["red", "blue", 7]},
        none={"type": ["integer", "null"]},
    ),
    "containers": object_of(
        ["items"],
        items={"type": "array", "items": INTEGER, "maxItems": 3},
        where=object_of(["lat"], lat=INTEGER, far={"type": "boolean"}),
    ),
    "none": object_of(),
}
WITH_MARKERS = [name for name, dialect in DIALECTS.items() if dialect.calls.openings and dialect.opening]
SPECIAL = re.compile(r"<\|[^>]*>|<[^<>]*\|>|<｜[^>]*>|\[[A-Z_/]+\]|</?(?:escape|\w+_function_\w+|tool_call|code)>")


def choice(mode: ChoiceMode) -> ToolChoice:
    return ToolChoice(mode, ("x",) if mode is ChoiceMode.NAMED else ())


@cache
def specials_of(name: str) -> Tokenizer:
    """The embedded model's tokenizer with the dialect's markers as special tokens."""
    texts = sorted({found for text in DIALECTS[name].texts for found in SPECIAL.findall(text)})
    return with_added_tokens(texts, is_special=True)


@pytest.fixture(scope="module")
def watches(tokenizer: Tokenizer) -> Watches:
    return Watches(tokenizer)


def walk_of(tokenizer: Tokenizer, watches: Watches, plan: ToolPlan) -> Walk:
    shown = marker_ids(DIALECTS[plan.dialect], tokenizer.special_tokens)
    return Walk(tokenizer, watches, plan, shown=shown)


def test_every_dialect_has_its_turn() -> None:
    assert DIALECTS.keys() == TURNS.keys()


@pytest.mark.parametrize("are_special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("mode", [ChoiceMode.REQUIRED, ChoiceMode.NAMED, ChoiceMode.AUTO])
@pytest.mark.parametrize("name", DIALECTS)
def test_the_dialects_own_text_is_what_the_grammar_allows(
    tokenizer: Tokenizer, watches: Watches, name: str, mode: ChoiceMode, are_special: bool
) -> None:
    if are_special:
        tokenizer = specials_of(name)
        watches = Watches(tokenizer)
    plan = ToolPlan(name, (spec("x", PARAMETERS), spec("y")), choice(mode), parallel=False)
    walk = walk_of(tokenizer, watches, plan)
    writes = Writes(TURNS[name])
    walk.go(writes)
    assert not writes.was_refused, walk.text
    assert walk.has_ended
    assert walk.reading.runs == [("x", ARGUMENTS)]
    assert walk.reading.text == ""
    if mode is not ChoiceMode.AUTO:
        assert walk.num_forced > 0


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", DIALECTS)
def test_every_way_through_a_grammar_is_a_call(tokenizer: Tokenizer, watches: Watches, name: str, schema: str) -> None:
    plan = ToolPlan(name, (spec("x", SCHEMAS[schema]),), choice(ChoiceMode.REQUIRED), parallel=False)
    for seed in range(4):
        walk = walk_of(tokenizer, watches, plan).go(Wanders(seed, watches_bytes(tokenizer)))
        [(tool, arguments)] = walk.reading.runs
        assert tool == "x"
        assert set(SCHEMAS[schema]["required"]) <= arguments.keys() <= set(SCHEMAS[schema]["properties"]), walk.text
        assert walk.reading.text == ""
        _assert_types(arguments)


def watches_bytes(tokenizer: Tokenizer) -> list[bytes]:
    return tokenizer.all_token_bytes()


def _assert_types(arguments: dict[str, object]) -> None:
    kinds = {"n": int, "x": int | float | Decimal, "on": bool, "kind": str | int, "none": int | None, "items": list}
    for key, value in arguments.items():
        if key == "where":
            assert isinstance(value, dict)
            assert isinstance(value["lat"], int)
        else:
            assert isinstance(value, kinds[key]), (key, value)


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if not dialect.is_single])
def test_a_turn_may_hold_two_calls(tokenizer: Tokenizer, watches: Watches, name: str) -> None:
    dialect = DIALECTS[name]
    one = TURNS[name]
    opening = dialect.opening + dialect.before_first_call
    body = one.removeprefix(opening).removesuffix(dialect.after_last_call)
    again = body.replace("functions.x:0", "functions.x:1")
    text = f"{opening}{body}{dialect.between_calls}{again}{dialect.after_last_call}"
    plan = ToolPlan(name, (spec("x", PARAMETERS),), choice(ChoiceMode.REQUIRED))
    writes = Writes(text)
    walk = walk_of(tokenizer, watches, plan).go(writes)
    assert not writes.was_refused, walk.text
    assert walk.reading.runs == [("x", ARGUMENTS), ("x", ARGUMENTS)]
    assert walk.reading.text == ""


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if not dialect.is_single])
def test_calls_that_are_asked_for_by_name_come_in_their_order(
    tokenizer: Tokenizer, watches: Watches, name: str
) -> None:
    wanted = ("y", "x", "y")
    tools = (spec("x", SCHEMAS["none"]), spec("y", object_of(n={"type": "boolean"})), spec("z"))
    plan = ToolPlan(name, tools, ToolChoice(ChoiceMode.NAMED, wanted))
    for seed in range(3):
        walk = walk_of(tokenizer, watches, plan).go(Wanders(seed, watches_bytes(tokenizer)))
        assert tuple(tool for tool, _ in walk.reading.runs) == wanted, walk.text
        assert walk.reading.text == ""
        assert walk.has_ended


@pytest.mark.parametrize("are_special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", WITH_MARKERS)
def test_auto_holds_a_call_to_its_form_from_its_marker_on(
    tokenizer: Tokenizer, watches: Watches, name: str, are_special: bool
) -> None:
    if are_special:
        tokenizer = specials_of(name)
        watches = Watches(tokenizer)
    plan = ToolPlan(name, (spec("x", PARAMETERS), spec("y", PARAMETERS)))
    walk = walk_of(tokenizer, watches, plan)
    assert walk.allowed() is None, "text is free"
    walk.go(Writes("So: ", ends=False))
    walk.go(Writes("So: " + DIALECTS[name].calls.openings[0], ends=False))
    allowed = walk.allowed()
    assert allowed is not None
    assert allowed.sum() < 100


@pytest.mark.parametrize("are_special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", DIALECTS)
def test_auto_leaves_text_free(tokenizer: Tokenizer, watches: Watches, name: str, are_special: bool) -> None:
    if are_special:
        tokenizer = specials_of(name)
        watches = Watches(tokenizer)
    text = "Well, <b>[1]</b> {x} and <|tool [TOOL < ｜ functions."
    writes = Writes(text)
    walk = walk_of(tokenizer, watches, ToolPlan(name, (spec("x", PARAMETERS),))).go(writes)
    assert not writes.was_refused
    assert walk.reading.text == text
    assert walk.has_ended


@pytest.mark.parametrize("are_special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.calls.starts])
def test_auto_leaves_an_answer_in_json_free(
    tokenizer: Tokenizer, watches: Watches, name: str, are_special: bool
) -> None:
    if are_special:
        tokenizer = specials_of(name)
        watches = Watches(tokenizer)
    for text in ('{"city": "Bern", "name": 1}', '[1, "two"]', "[see note 3]"):
        writes = Writes(text)
        walk = walk_of(tokenizer, watches, ToolPlan(name, (spec("x", PARAMETERS),))).go(writes)
        assert not writes.was_refused
        assert walk.reading.text == text
        assert walk.num_forced == 0


@pytest.mark.parametrize("mode", [ChoiceMode.REQUIRED, ChoiceMode.NAMED])
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "required_json"])
def test_calls_that_must_be_made_come_after_the_reasoning_that_the_prompt_has_opened(
    tokenizer: Tokenizer, watches: Watches, name: str, mode: ChoiceMode
) -> None:
    plan = ToolPlan(
        name,
        (spec("x", PARAMETERS),),
        choice(mode),
        False,
        reasoning_markers=("<think>", "</think>"),
        is_reasoning=True,
    )
    writes = Writes("Which one? x.</think>" + TURNS[name])
    walk = walk_of(tokenizer, watches, plan).go(writes)
    assert not writes.was_refused, walk.text
    assert walk.reading.reasoning == "Which one? x."
    assert walk.reading.runs == [("x", ARGUMENTS)]
    assert walk.has_ended


COLOUR = {"$ref": "#/$defs/Colour"}
OPTIONAL = {
    **object_of(["a", "n"], a={"anyOf": [COLOUR, {"type": "null"}]}, n={"anyOf": [{"type": "integer"}, COLOUR]}),
    "$defs": {"Colour": {"type": "string", "enum": ["red", "blue"]}},
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_value_of_several_kinds_may_be_each_of_them(tokenizer: Tokenizer, watches: Watches, name: str) -> None:
    plan = ToolPlan(name, (spec("x", OPTIONAL),), choice(ChoiceMode.REQUIRED), parallel=False)
    seen: set[object] = set()
    for seed in range(12):
        walk = walk_of(tokenizer, watches, plan).go(Wanders(seed, watches_bytes(tokenizer)))
        [(_, arguments)] = walk.reading.runs
        assert arguments["a"] in ("red", "blue", None), walk.text
        assert isinstance(arguments["n"], int) or arguments["n"] in ("red", "blue"), walk.text
        seen.add(arguments["a"])
    assert len(seen) > 1, "only one of them can be written"


def test_what_a_schema_spells_is_text_and_never_a_special_token() -> None:
    tokenizer = specials_of("gemma4")
    watches = Watches(tokenizer)
    evil = object_of(["a"], a={"enum": ["<|tool_response>"]})
    plan = ToolPlan("gemma4", (spec("x", evil),), choice(ChoiceMode.REQUIRED), parallel=False)
    walk = walk_of(tokenizer, watches, plan).go(Wanders(1, tokenizer.all_token_bytes()))
    assert tokenizer.special_tokens["<|tool_response>"] not in walk.token_ids
    assert walk.reading.runs == [("x", {"a": "<|tool_response>"})]


@pytest.mark.parametrize("schema", [{"a": {"anyOf": 5}}, {"a": {"type": "object", "properties": 5, "required": 5}}])
@pytest.mark.parametrize("name", DIALECTS)
def test_a_schema_that_is_none_is_an_error_or_harmless(name: str, schema: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": schema}
    with suppress(RequestError):
        check_tool(spec("x", parameters), DIALECTS[name], "tools.0")


NODE = {"$ref": "#/$defs/Node"}
TREE = {
    **object_of(root=NODE),
    "$defs": {"Node": object_of(["n"], n=INTEGER, kids={"type": "array", "items": NODE})},
}
NESTED: dict[str, Any] = {"n": 0}
for _number in range(1, 9):
    NESTED = {"n": _number, "kids": [NESTED]}
NESTED_JSON = json.dumps(NESTED)
NESTED_BRACED = NESTED_JSON.replace('"', "").replace(" ", "")
TREES = {
    "hermes": f'<tool_call>\n{{"name": "x", "arguments": {{"root": {NESTED_JSON}}}}}\n</tool_call>',
    "pythonic": f"[x(root={NESTED_JSON})]",
    "functiongemma": f"<start_function_call>call:x{{root:{NESTED_BRACED}}}<end_function_call>",
    "qwen3_coder": f"<tool_call>\n<function=x>\n<parameter=root>\n{NESTED_JSON}\n</parameter>\n</function>\n"
    "</tool_call>",
}


@pytest.mark.parametrize("name", TREES)
def test_a_schema_that_refers_to_itself_holds_at_any_depth(tokenizer: Tokenizer, watches: Watches, name: str) -> None:
    plan = ToolPlan(name, (spec("x", TREE),), choice(ChoiceMode.REQUIRED), parallel=False)
    writes = Writes(TREES[name])
    walk = walk_of(tokenizer, watches, plan).go(writes)
    assert not writes.was_refused, walk.text
    assert walk.reading.runs == [("x", {"root": NESTED})]
    innermost = re.compile(r'(?<=n": )0|(?<=n:)0')
    wrong = Writes(innermost.sub("true", TREES[name]))
    assert walk_of(tokenizer, watches, plan).go(wrong).reading.runs == []
    assert wrong.was_refused


@pytest.mark.parametrize("name", DIALECTS)
def test_a_grammar_is_about_as_long_as_its_schema(name: str) -> None:
    node = object_of([], **{f"p{number}": NODE for number in range(20)})
    schema = {**object_of(a=NODE, b={"type": "array", "items": NODE}), "$defs": {"Node": node}}
    assert check_tool(spec("x", schema), DIALECTS[name], "tools.0") < 4 * len(json.dumps(schema))


@pytest.mark.parametrize("name", DIALECTS)
def test_a_tool_may_have_thousands_of_arguments(name: str) -> None:
    schema = object_of(["p7"], **{f"p{number}": INTEGER for number in range(4000)})
    assert check_tool(spec("x", schema), DIALECTS[name], "tools.0") > 0


@pytest.mark.parametrize("link", ["properties", "items", "plain"])
@pytest.mark.parametrize("name", DIALECTS)
def test_a_long_chain_of_references_is_refused(name: str, link: str) -> None:
    """Followed to its end it would take the process with it."""

    def to(number: int) -> dict[str, Any]:
        node = {"$ref": f"#/$defs/d{number}"}
        return {"properties": object_of(k=node), "items": {"type": "array", "items": node}, "plain": node}[link]

    chain = {f"d{number}": to(number + 1) for number in range(4000)}
    schema = {**object_of(a={"$ref": "#/$defs/d0"}), "$defs": {**chain, "d4000": INTEGER}}
    with pytest.raises(RequestError, match="levels deep, all together; the limit is 512"):
        check_tool(spec("x", schema), DIALECTS[name], "tools.0")


@pytest.mark.parametrize("loop", [NODE, {"anyOf": [NODE]}, {"anyOf": [NODE, NODE]}], ids=["ref", "one", "two"])
@pytest.mark.parametrize("name", ["pythonic", "gemma4", "qwen3_coder"])
def test_a_reference_that_only_leads_to_itself_says_nothing(
    tokenizer: Tokenizer, watches: Watches, name: str, loop: dict[str, Any]
) -> None:
    schema = {**object_of(a=NODE, n=INTEGER), "$defs": {"Node": loop}}
    plan = ToolPlan(name, (spec("x", schema),), choice(ChoiceMode.REQUIRED), parallel=False)
    writes = Writes(TURNS[name])
    walk = walk_of(tokenizer, watches, plan).go(writes)
    assert not writes.was_refused, walk.text
    assert walk.reading.runs == [("x", ARGUMENTS)]


def test_definitions_that_would_be_written_out_for_each_argument_are_refused() -> None:
    inner = object_of([], **{f"p{number}": INTEGER for number in range(300)})
    items = {"type": "array", "items": NODE}
    schema = {**object_of([], **{f"a{number}": items for number in range(400)}), "$defs": {"Node": inner}}
    with pytest.raises(RequestError, match=r"are too large; the grammar .* may have 2097152 characters"):
        check_tool(spec("x", schema), DIALECTS["qwen3_coder"], "tools.0")
