"""Owns what was measured: every single value, by workload, figure and server. Judges nothing."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MIDSTREAM = "midstream"
LLAMA = "llama.cpp"
TRANSFORMERS = "transformers"
SERVERS = (MIDSTREAM, LLAMA, TRANSFORMERS)

Key = tuple[str, str]
"""(workload, figure)"""


@dataclass(frozen=True)
class Spread:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Results:
    """Values are in the order in which they were measured, so that two servers' n-th values belong together."""

    values: dict[Key, dict[str, list[float]]] = field(default_factory=dict)
    not_measured: list[tuple[str, str]] = field(default_factory=list)
    """(what, why)"""
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, workload: str, server: str, figures: dict[str, Any]) -> None:
        for figure, value in figures.items():
            new = value if isinstance(value, list) else [value]
            self.values.setdefault((workload, figure), {}).setdefault(server, []).extend(float(each) for each in new)

    def miss(self, what: str, why: str) -> None:
        """Only the first reason of each is kept."""
        if all(what != known for known, _ in self.not_measured):
            self.not_measured.append((what, " ".join(why.split())[:300]))

    def of(self, workload: str, figure: str, server: str = MIDSTREAM) -> list[float]:
        """Empty when there is none."""
        return self.values.get((workload, figure), {}).get(server, [])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Median over median; the spread is that of the pairs of one round."""
    if not ours or not theirs or not all(theirs):
        return None
    pairs = [a / b for a, b in zip(ours, theirs, strict=False)]
    return Spread(statistics.median(ours) / statistics.median(theirs), min(pairs), max(pairs))


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: the least value that `percent` of all values do not exceed."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
