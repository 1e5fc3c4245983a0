"""Owns the workloads on BFCL's cases: how early a call is known and may run, and how often it is right."""

from pathlib import Path

from benchmarks.tools.asking import Asked, Asker
from benchmarks.tools.bfcl import Case, load

from midstream.messages import CallClosed, CallReady, CallRouted, ChoiceMode, ToolChoice, ToolPlan

Figures = dict[str, list[float]]

_MAX_TOKENS = 400
_FREE_TOKENS = 160
"""Of a turn without a grammar: a call that has not begun by then does not come."""
TIMED = ("simple", "multiple", "parallel")
JUDGED = ("simple", "multiple", "parallel", "live_simple")
STAGES = ("routed", "ready", "call's end", "turn's end")
_KINDS = (("routed", CallRouted), ("ready", CallReady), ("call's end", CallClosed))


def held(case: Case, category: str) -> ToolPlan:
    """One call of any tool; where several are wanted, those that are, by name and in their order."""
    if category == "parallel":
        names = tuple(name for wanted in case.accepted for name in wanted)
        return ToolPlan("hermes", case.tools, ToolChoice(ChoiceMode.NAMED, names))
    return ToolPlan("hermes", case.tools, ToolChoice(ChoiceMode.REQUIRED), parallel=False)


def whole_turns_ms(asker: Asker, category: str, cache: Path, limit: int | None) -> list[float]:
    """As a server does that reads a call when its turn has ended: from the turn's first token to its last."""
    times = []
    for case in load(category, cache)[:limit]:
        asked = asker.ask(case.messages, case.template_tools, held(case, category), _MAX_TOKENS)
        if asked.marks(CallClosed):
            times.append((asked.end_ns - asked.first_token_ns) / 1e6)
    return times


def times_to_dispatch(asker: Asker, category: str, cache: Path, limit: int | None) -> tuple[Figures, int]:
    """Tokens, passes and ms from the turn's first token to each stage of its first call; and the cases with none.

    A time below 0: the grammar knew it before the model had written anything.
    """
    figures: Figures = {}
    num_without = 0
    for case in load(category, cache)[:limit]:
        asked = asker.ask(case.messages, case.template_tools, held(case, category), _MAX_TOKENS)
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
            rights = []
            for case in load(category, cache)[:num_cases]:
                plan = held(case, category) if constrains else ToolPlan("hermes", case.tools)
                limit = _MAX_TOKENS if constrains else _FREE_TOKENS
                asked = asker.ask(case.messages, case.template_tools, plan, limit)
                rights.append(float(case.is_right(asked.calls(case))))
            found[category][f"whole calls right, {how}"] = rights
    return found
