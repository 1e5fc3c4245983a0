"""Owns how results are shown: JSON with every value, Markdown with goals and spreads. Measures nothing."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import GOALS, Goal
from benchmarks.results import MIDSTREAM, SERVERS, Results, Spread, ratio

from benchmarks import names

_HOW_TO_READ = """\
Medians; least to most in brackets. A ratio is median over median of alternating runs in one session, only one server
running at a time; its bracket spans the pairs of runs. The share of the bandwidth takes the weights that a step reads.
What each workload does stands in `benchmarks/workloads.py`, how to repeat it in `benchmarks/README.md`.
Tools that run while the model writes have [a page of their own](benchmarks-tools.md)."""


def write(
    path: Path,
    results: Results,
    goals: Sequence[Goal] = GOALS,
    title: str = "Benchmarks",
    how_to_read: str = _HOW_TO_READ,
) -> None:
    """`path`.json and `path`.md, which is shown as well."""
    text = as_markdown(results, goals, title, how_to_read)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = json.dumps(as_json(results, goals), indent=1, ensure_ascii=False)
    path.with_suffix(".json").write_text(record + "\n")
    path.with_suffix(".md").write_text(text)
    print(text)
    print(f"written to {path}.json and {path.name}.md", file=sys.stderr)


def as_json(results: Results, goals: Sequence[Goal] = GOALS) -> dict[str, Any]:
    return {
        **results.facts,
        "goals": [_goal_record(goal, goal.measure(results)) for goal in goals],
        "figures": [
            {"workload": workload, "figure": figure, "server": server, "values": [rounded(each) for each in values]}
            for (workload, figure), by_server in results.values.items()
            for server, values in by_server.items()
        ],
        "not_measured": [{"what": what, "why": why} for what, why in results.not_measured],
    }


def as_markdown(
    results: Results,
    goals: Sequence[Goal] = GOALS,
    title: str = "Benchmarks",
    how_to_read: str = _HOW_TO_READ,
) -> str:
    parts = [f"# {title}", how_to_read, "## Goals", goals_table(results, goals)]
    parts += ["## Beside other servers", side_by_side_table(results)]
    parts += ["## midstream alone", alone_table(results)]
    if results.not_measured:
        parts += ["## Not measured", table(("what", "why"), results.not_measured)]
    parts += ["## Taken on", facts_list(results.facts)]
    return "\n\n".join(parts) + "\n"


def goals_table(results: Results, goals: Sequence[Goal] = GOALS) -> str:
    rows = []
    for goal in goals:
        spread = goal.measure(results)
        measured = show(spread) if spread else "not measured"
        verdict = ("yes" if goal.is_met(spread.median) else "**no**") if spread else ""
        rows.append((goal.what, goal.text, measured, verdict))
    return table(("what", "goal", "measured", "met"), rows)


def side_by_side_table(results: Results) -> str:
    rows = []
    for (workload, figure), by_server in results.values.items():
        peer = next((server for server in SERVERS[1:] if server in by_server), None)
        if peer is None:
            continue
        ours = by_server.get(MIDSTREAM, [])
        if figure == names.PROMPT_TOKENS and ours == by_server[peer]:
            continue  # both count the same; the workload's name has it
        quotient = None if figure in (names.OTHERS, names.STEAL) else ratio(ours, by_server[peer])
        rows.append((workload, figure, _show(ours), peer, _show(by_server[peer]), show(quotient) if quotient else ""))
    return table(("workload", "figure", MIDSTREAM, "peer", "peer's", "ratio"), rows)


def alone_table(results: Results) -> str:
    rows = [
        (workload, figure, _show(by_server[MIDSTREAM]), len(by_server[MIDSTREAM]))
        for (workload, figure), by_server in results.values.items()
        if set(by_server) == {MIDSTREAM} and by_server[MIDSTREAM]
    ]
    return table(("workload", "figure", MIDSTREAM, "values"), rows)


def facts_list(facts: dict[str, Any]) -> str:
    return "\n".join(f"- {name}: {_show_fact(value)}" for name, value in facts.items())


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Columns padded, so that it reads in a terminal too."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    rule = ["-" * width for width in widths]
    padded = [
        [cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (cells[0], rule, *cells[1:])
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def show(spread: Spread) -> str:
    median, least, most = (number(value) for value in (spread.median, spread.least, spread.most))
    return median if least == most == median else f"{median} ({least} to {most})"


def number(value: float) -> str:
    """Three significant digits; whole from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _show(values: Sequence[float]) -> str:
    return show(Spread.of(values)) if values else "not measured"


def _show_fact(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_show_fact(each)}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _goal_record(goal: Goal, spread: Spread | None) -> dict[str, Any]:
    record: dict[str, Any] = {"what": goal.what, "goal": goal.text}
    if spread is None:
        return record | {"measured": None, "met": None}
    values = {"median": spread.median, "least": spread.least, "most": spread.most}
    measured = {name: rounded(value) for name, value in values.items()}
    return record | {"measured": measured, "met": goal.is_met(spread.median)}
