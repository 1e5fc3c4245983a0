"""Owns the workloads on BFCL's cases: how early a call is known and may run, and how often it is right."""

from pathlib import Path

from benchmarks.tools.asking import Asked, Asker
from benchmarks.tools.bfcl import Case, load

from midstream.messages import CallClosed, CallReady, CallRouted, ChoiceMode, ToolChoice, ToolPlan

Figures = dict[str, list[float]]

_MAX_TOKENS = 400
TIMED = ("simple", "multiple", "parallel")
JUDGED = ("simple", "multiple", "parallel", "live_simple")
STAGES = ("routed", "ready", "call's end", "turn's end")
_KINDS = (("routed", CallRouted), ("ready", CallReady), ("call's end", CallClosed))


def required(case: Case, *, parallel: bool) -> ToolPlan:
    return ToolPlan("hermes", case.tools, ToolChoice(ChoiceMode.REQUIRED), parallel)


def times_to_dispatch(asker: Asker, category: str, cache: Path, limit: int | None) -> tuple[Figures, int]:
    """Tokens, passes and ms from the turn's first token to each stage of its first call; and the cases with none."""
    figures: Figures = {}
    num_without = 0
    for case in load(category, cache)[:limit]:
        asked = asker.ask(
            case.messages, case.template_tools, required(case, parallel=category == "parallel"), _MAX_TOKENS
        )
        if not asked.marks(CallClosed):
            num_without += 1  # cut at its limit
            continue
        for name, values in _stages(asked).items():
            figures.setdefault(name, []).append(values)
    return figures, num_without


def _stages(asked: Asked) -> dict[str, float]:
    values: dict[str, float] = {}
    for stage, kind in _KINDS:
        mark = asked.marks(kind)[0]
        values[f"{stage}: tokens"] = mark.token_index
        values[f"{stage}: passes"] = mark.pass_number
        values[f"{stage}: ms"] = asked.ms(mark)
    values["turn's end: tokens"] = asked.num_tokens
    values["turn's end: passes"] = asked.num_passes
    values["turn's end: ms"] = (asked.end_ns - asked.first_token_ns) / 1e6
    return values


def accuracy(model: Path, cache: Path, num_cases: int) -> dict[str, Figures]:
    """By category, whole calls right: 1 or 0 a case, held to the grammar and free."""
    found: dict[str, Figures] = {category: {} for category in JUDGED}
    for how, constrains in (("held to the grammar", True), ("unconstrained", False)):
        asker = Asker(model, constrains=constrains)
        for category in JUDGED:
            is_parallel = category == "parallel"
            rights = []
            for case in load(category, cache)[:num_cases]:
                plan = required(case, parallel=is_parallel) if constrains else ToolPlan("hermes", case.tools)
                asked = asker.ask(case.messages, case.template_tools, plan, _MAX_TOKENS)
                rights.append(float(case.is_right(asked.calls(case))))
            found[category][f"whole calls right, {how}"] = rights
    return found
