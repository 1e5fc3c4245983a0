"""A text argument as it grows: its pieces, decoded, whatever the dialect's way of writing it and however it is cut."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.messages import CallPartial, RunsOn, ToolAnnotations, ToolPlan
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.string_parts import StringParts
from midstream.routing.watching.watch import Watches
from tests.routing.watching.reading import read, spec
from tests.routing.watching.schemas import STRING, object_of

TEXT = 'SELECT "a"\n\tFROM t -- é😀 \\ </param'
TAKES_PARTS = ToolAnnotations(read_only=True, accepts_partial=True)


def turns(text: str) -> dict[str, str]:
    arguments = json.dumps({"n": "x", "a": text})
    return {
        "hermes": f'<tool_call>\n{{"name": "x", "arguments": {arguments}}}\n</tool_call>',
        "mistral_v11": f"[TOOL_CALLS]x{arguments}",
        "qwen3_coder": "<tool_call>\n<function=x>\n<parameter=n>\nx\n</parameter>\n"
        f"<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>",
        "glm47": "<tool_call>x<arg_key>n</arg_key><arg_value>x</arg_value>"
        f"<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>",
    }


@pytest.fixture(scope="module")
def watches(tokenizer: Tokenizer) -> Watches:
    return Watches(tokenizer, constrains=False)


def parts(watches: Watches, dialect: str, pieces: list[str], annotations: ToolAnnotations = TAKES_PARTS) -> list[str]:
    tool = spec("x", object_of(n=STRING, a=STRING), annotations, RunsOn.SERVER)
    plan = ToolPlan(dialect, (tool,))
    events = read(watches.make(plan, 0), pieces, plan=plan).events
    return [event.text for event in events if isinstance(event, CallPartial) and event.field_index == 1]


@pytest.mark.parametrize("dialect", turns(""))
@pytest.mark.parametrize("size", [1, 3, 7])
def test_pieces_are_the_beginning_of_the_text(watches: Watches, dialect: str, size: int) -> None:
    turn = turns(TEXT * 3)[dialect]
    told = parts(watches, dialect, [turn[i : i + size] for i in range(0, len(turn), size)])
    assert len(told) > 3
    assert (TEXT * 3).startswith("".join(told))
    assert len("".join(told)) > 2 * len(TEXT), "most of it comes early"


@pytest.mark.parametrize("dialect", turns(""))
def test_a_tool_that_wants_no_pieces_gets_none(watches: Watches, dialect: str) -> None:
    assert parts(watches, dialect, list(turns(TEXT)[dialect]), ToolAnnotations(read_only=True)) == []


@given(st.text(), st.booleans(), st.data())
def test_a_string_is_told_as_it_grows(text: str, is_ascii: bool, data: st.DataObject) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    raw = json.dumps(text, ensure_ascii=is_ascii)
    ends = sorted(data.draw(st.lists(st.integers(1, len(raw) - 1), max_size=6)))
    told = StringParts(1)
    seen = "".join(told.next(raw, end) for end in [*ends, len(raw) - 1])
    assert seen == text


@pytest.mark.parametrize("raw", [r'"ab\udc00cd"', r'"ab\ud83dcd"', r'"ab\ud83d\u0041"'])
def test_half_a_character_is_never_told(raw: str) -> None:
    told = StringParts(1)
    text = "".join(told.next(raw, end) for end in range(1, len(raw)))
    assert text == "ab"


def test_a_call_with_half_a_character_is_none(watches: Watches) -> None:
    tool = spec("x", object_of(a=STRING), runs_on=RunsOn.CLIENT)
    for dialect, turn in (
        ("pythonic", r'[x(a="\ud800")]'),
        ("hermes", r'<tool_call>\n{"name": "x", "arguments": {"a": "\ud800"}}\n</tool_call>'.replace(r"\n", "\n")),
    ):
        plan = ToolPlan(dialect, (tool,))
        for pieces in ([turn], list(turn)):
            reading = read(watches.make(plan, 0), pieces, plan=plan)
            assert reading.closed == []
            for event in reading.events:
                msgspec.msgpack.encode(event)  # what cannot be sent would take the engine with it
