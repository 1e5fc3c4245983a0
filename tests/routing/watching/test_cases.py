"""Every case of every dialect, at every cut: one result, and it is the expected one."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from midstream.messages import ChoiceMode, FinishReason, RunsOn, ToolChoice, ToolPlan
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.dialects import DIALECTS
from midstream.routing.watching.watch import Watches
from tests.routing.watching.reading import Reading, read, spec
from tests.support.cases import Case, assert_dispatched, assert_matches, every_cutting, load_cases
from tests.support.wire_calls import Call

CASES = load_cases()
REASONING = ("<think>", "</think>")

Cutting = tuple[str, Sequence[str | bytes]]


@pytest.fixture(scope="module")
def watches(tokenizer: Tokenizer) -> Watches:
    return Watches(tokenizer, constrains=False)


def plan_of(case: Case) -> ToolPlan:
    dialect = "hermes" if case.dialect == "plain" else case.dialect
    runs_on = RunsOn.SERVER if case.is_server_mode else RunsOn.CLIENT
    functions = [tool["function"] for tool in case.tools]
    tools = tuple(spec(function["name"], function["parameters"], runs_on=runs_on) for function in functions)
    choice = ToolChoice(ChoiceMode(case.request.get("tool_choice", "auto")))
    return ToolPlan(dialect, tools, choice, reasoning_markers=REASONING)


def cuttings(case: Case) -> Iterator[Cutting]:
    """Every cutting of the text, and of its bytes: a token may end inside a character."""
    if case.byte_chunks is None:
        yield from every_cutting(case, num_random=100)
        data = case.model_output.encode()
    else:
        yield "required bytes", case.byte_chunks
        data = b"".join(case.byte_chunks)
    if case.byte_chunks is None and data.isascii():
        return
    yield "whole bytes", [data]
    yield "byte by byte", [data[i : i + 1] for i in range(len(data))]
    yield from ((f"bytes in two at {i}", [data[:i], data[i:]]) for i in range(1, len(data)))
    dice = random.Random(case.id)
    for number in range(20):
        cuts = sorted(dice.sample(range(1, len(data)), min(4, len(data) - 1)))
        yield f"random bytes {number}", [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def read_case(watches: Watches, case: Case, plan: ToolPlan, pieces: Sequence[str | bytes]) -> Reading:
    end = FinishReason.LENGTH if case.engine.get("finish") == "length" else FinishReason.STOP
    stop = case.request.get("stop", ())
    return read(watches.make(plan, 0), pieces, stop=stop, end=end, plan=plan)


def calls_of(case: Case, reading: Reading) -> list[Call]:
    """The calls as a client knows them: those that failed are given back as text."""
    failed = {event.index for event in reading.abandoned if not event.is_cut}
    if not case.is_server_mode:
        return [
            Call(None, name, reading.arguments_text(index))
            for index, name in reading.names.items()
            if index not in failed
        ]
    return [Call(None, name, json.dumps(arguments)) for name, arguments in reading.runs]


def finish_of(case: Case, reading: Reading) -> str:
    """What the gateway makes of it: `tool_calls` where the client has calls to run."""
    if reading.finish is FinishReason.STOP and reading.closed and not case.is_server_mode:
        return "tool_calls"
    return reading.finish.value


def runs_of(case: Case, reading: Reading) -> list[tuple[str, dict[str, Any]]]:
    """What would run: a server's tool with its frame, a client's when its call has closed."""
    if case.is_server_mode:
        return reading.runs
    return [(reading.names[index], json.loads(reading.arguments_text(index))) for index in reading.closed]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_reads_the_same_at_every_cut_and_as_expected(watches: Watches, case: Case) -> None:
    plan = plan_of(case)
    seen: dict[str, str] = {}
    for label, pieces in cuttings(case):
        reading = read_case(watches, case, plan, pieces)
        result = (reading.text, reading.reasoning, calls_of(case, reading), finish_of(case, reading))
        seen.setdefault(repr((*result, reading.kinds)), label)
        assert len(seen) == 1, f"{case.id}: {list(seen.items())}"
        content, reasoning, calls, finish = result
        assert_matches(case, content or None, calls, finish, reasoning or None)
        if "disconnect_after_content" not in case.action:  # nobody leaves here: the call may run
            assert_dispatched(case, runs_of(case, reading))


def test_every_dialect_served_here_has_cases() -> None:
    assert DIALECTS.keys() - {"granite31"} == {case.dialect for case in CASES} - {"plain"}
    assert len(CASES) == 71
