"""Owns the reading of `tests/data/cases`, the ways to cut a text, and the comparison with a case.

Never runs a case: the tests of each layer do, from the parser up to the wire.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.wire_calls import Call

DATA = Path(__file__).parent.parent / "data" / "cases"

Cutting = tuple[str, list[str]]
"""(label for a failing test's message, the pieces)"""

_FIXED_SIZES = (2, 3, 5, 8, 13)
_EVERY_POSITION_UP_TO = 2_000


@dataclass(frozen=True)
class Case:
    """One line of `tool_stream.jsonl`; the README beside it explains the fields."""

    raw: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.raw["id"])

    @property
    def dialect(self) -> str:
        return str(self.raw["dialect"])

    @property
    def model_output(self) -> str:
        return str(self.raw["model_output"])

    @property
    def byte_chunks(self) -> list[bytes] | None:
        chunks = self.raw.get("byte_chunks_hex")
        return None if chunks is None else [bytes.fromhex(chunk) for chunk in chunks]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The case's own tools, also when it has none; otherwise those of `tools.json`."""
        tools: list[dict[str, Any]] = self.raw["tools"] if "tools" in self.raw else _default_tools()
        return tools

    @property
    def request(self) -> dict[str, Any]:
        return dict(self.raw.get("request", {}))

    @property
    def engine(self) -> dict[str, Any]:
        return dict(self.raw.get("engine", {}))

    @property
    def action(self) -> dict[str, Any]:
        return dict(self.raw.get("action", {}))

    @property
    def is_server_mode(self) -> bool:
        return self.raw.get("mode") == "server"

    @property
    def policy(self) -> str | None:
        return self.raw.get("policy")

    @property
    def content_match(self) -> str:
        return str(self.raw.get("content_match", "strip"))

    @property
    def expected(self) -> dict[str, Any]:
        return dict(self.raw["expected"])

    @property
    def assert_stream(self) -> list[str]:
        return list(self.raw.get("assert_stream", []))


@cache
def _default_tools() -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = json.loads((DATA / "tools.json").read_text("utf-8"))
    return tools


def load_cases(*, dialects: Iterable[str] | None = None) -> list[Case]:
    """Return all cases in file order, or those of `dialects` alone."""
    lines = (DATA / "tool_stream.jsonl").read_text("utf-8").split("\n")
    cases = [Case(json.loads(line)) for line in lines if line.strip()]
    wanted = None if dialects is None else set(dialects)
    return [case for case in cases if wanted is None or case.dialect in wanted]


# --- cuts ---


def whole(text: str) -> list[str]:
    return [text]


def by_char(text: str) -> list[str]:
    return list(text)


def fixed(text: str, k: int) -> list[str]:
    return [text[start : start + k] for start in range(0, len(text), k)]


def every_two_piece_cut(text: str) -> Iterator[list[str]]:
    """Yield every cut in two. A long text is cut at both its ends densely and every 37 characters between."""
    for position in range(1, len(text)):
        is_near_an_end = min(position, len(text) - position) <= _EVERY_POSITION_UP_TO // 10
        if len(text) <= _EVERY_POSITION_UP_TO or is_near_an_end or position % 37 == 0:
            yield [text[:position], text[position:]]


def seeded_random(text: str, n: int) -> Iterator[list[str]]:
    """Yield `n` cuts into 2 to 12 pieces, the same ones in every run."""
    dice = random.Random(f"{n}:{text}")
    for _ in range(n if len(text) > 1 else 0):
        num_cuts = min(dice.randint(1, 11), len(text) - 1)
        yield _cut(text, sorted(dice.sample(range(1, len(text)), num_cuts)))


def required(case: Case) -> Iterator[Cutting]:
    """Yield the cuttings that the case itself spells out."""
    for number, entry in enumerate(case.raw.get("chunking", [])):
        if isinstance(entry, dict) and isinstance(entry["chunks"], list):
            yield f"required {number}", list(entry["chunks"])
        elif entry == "whole" or (isinstance(entry, dict) and entry["chunks"] == "whole"):
            yield "required whole", whole(case.model_output)
        elif isinstance(entry, str) and (match := re.fullmatch(r"fixed-(\d+)", entry)):
            yield f"required {entry}", fixed(case.model_output, int(match[1]))
        elif not (isinstance(entry, str) and entry.startswith("all splits")):
            raise ValueError(f"case {case.id}: unknown chunking {entry!r}")


def every_cutting(case: Case, num_random: int = 20) -> Iterator[Cutting]:
    """Yield the required cuttings, the whole text, single characters, fixed sizes, two pieces, random."""
    text = case.model_output
    yield from required(case)
    yield "whole", whole(text)
    yield "char", by_char(text)
    yield from ((f"fixed {k}", fixed(text, k)) for k in _FIXED_SIZES)
    yield from ((f"two pieces at {len(pieces[0])}", pieces) for pieces in every_two_piece_cut(text))
    yield from ((f"random {i}", pieces) for i, pieces in enumerate(seeded_random(text, num_random)))


def _cut(text: str, positions: Sequence[int]) -> list[str]:
    return [text[start:stop] for start, stop in pairwise([0, *positions, len(text)])]


# --- comparison ---


def assert_matches(
    case: Case,
    content: str | None,
    tool_calls: Sequence[Call],
    finish_reason: str | None,
    reasoning: str | None = None,
    *,
    errored: bool = False,
) -> None:
    """Compare a run with `case.expected` under its `content_match`.

    In server mode `tool_calls` are the calls of the events. A `Call.id` of None is not looked at.
    `errored`: an error was visible for a call, which a `lossless_*` case accepts in place of its raw text.
    """
    expected, where = case.expected, f"case {case.id} ({case.raw['title']})"
    if case.content_match.startswith("lossless") and tool_calls:
        _assert_recovered(where, expected, tool_calls, finish_reason, errored)
        return
    accepted = expected.get("finish_reason_accept", [expected["finish_reason"]])
    assert finish_reason in accepted, f"{where}: finish_reason {finish_reason!r}, not one of {accepted}"
    squeeze = _exact if case.content_match == "exact" else _collapse
    for name, got, want in (
        ("content", content, expected["content"]),
        ("reasoning", reasoning, expected.get("reasoning_content")),
    ):
        assert squeeze(got) == squeeze(want), f"{where}: {name} {got!r}, not {want!r}"
    assert len(tool_calls) == len(expected["tool_calls"]), f"{where}: calls {list(tool_calls)}"
    for call, want in zip(tool_calls, expected["tool_calls"], strict=True):
        _assert_call(where, call, want)
    _assert_ids(where, case, tool_calls)


def assert_dispatched(case: Case, runs: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Check that only calls (name, arguments) that the case allows ran: its `dispatch`, or its whole ones."""
    whole_calls = [call for call in case.expected["tool_calls"] if call.get("complete", True)]
    allowed = [_canonical(call) for call in case.expected.get("dispatch", whole_calls)]
    for name, arguments in runs:
        run = _canonical({"name": name, "arguments": arguments})
        assert run in allowed, f"case {case.id}: {run} must not run; allowed: {allowed}"
        allowed.remove(run)


def _assert_recovered(
    where: str, expected: dict[str, Any], tool_calls: Sequence[Call], finish_reason: str | None, errored: bool
) -> None:
    """A `lossless_*` case that did not give its raw text back: a recovered call, or a visible error."""
    if "accept_call" in expected and not errored:
        assert len(tool_calls) == 1, f"{where}: calls {list(tool_calls)}"
        _assert_call(where, tool_calls[0], expected["accept_call"])
    else:
        assert errored, f"{where}: a call without a visible error: {list(tool_calls)}"
    assert finish_reason in ("stop", "tool_calls"), f"{where}: finish_reason {finish_reason!r}"


def _assert_call(where: str, call: Call, expected: dict[str, Any]) -> None:
    assert call.name == expected["name"], f"{where}: name {call.name!r}, not {expected['name']!r}"
    if expected.get("complete", True):
        got, want = _canonical(json.loads(call.arguments_text)), _canonical(expected["arguments"])
    else:
        got, want = call.arguments_text, expected["arguments_text"]
    assert got == want, f"{where}: arguments {got}, not {want}"


def _assert_ids(where: str, case: Case, tool_calls: Sequence[Call]) -> None:
    ids = [call.id for call in tool_calls if call.id is not None]
    if ids and "ids" in case.expected:
        assert ids == case.expected["ids"], f"{where}: ids {ids}, not {case.expected['ids']}"
    pattern = case.raw.get("assert_id_regex", "")
    bad = [id_ for id_ in ids if pattern and not re.search(pattern, id_)]
    assert not bad, f"{where}: ids {bad} do not match {pattern}"


def _canonical(value: Any) -> str:
    """JSON in which 1, 1.0, true and "1" all differ and the order of keys does not count."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _exact(text: str | None) -> str:
    """The text, with a run of U+FFFD as one: how many stand for broken bytes is the decoder's choice."""
    return re.sub("\ufffd+", "\ufffd", text or "")


def _collapse(text: str | None) -> str:
    return re.sub(r"\s+", " ", _exact(text)).strip()
