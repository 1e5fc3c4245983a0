"""Owns the goals: what each asks for and from which figures it is judged. Measures nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.results import LLAMA, Results, Spread, percentile, ratio

from benchmarks import names

Measure = Callable[[Results], Spread | None]


@dataclass(frozen=True)
class Goal:
    what: str
    limit: float
    unit: str
    measure: Measure
    is_at_least: bool = False

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.is_at_least else value <= self.limit

    @property
    def text(self) -> str:
        return f"at {'least' if self.is_at_least else 'most'} {self.limit:g}{self.unit}"


def against_llama(workload: str, figure: str) -> Measure:
    return lambda results: ratio(results.of(workload, figure), results.of(workload, figure, LLAMA))


def quotient(workload: str, figure: str, other: str, scale: float = 1) -> Measure:
    """One of midstream's figures over another of the same runs."""

    def measure(results: Results) -> Spread | None:
        return ratio([scale * value for value in results.of(workload, figure)], results.of(workload, other))

    return measure


def ours(workload: str, figure: str) -> Measure:
    def measure(results: Results) -> Spread | None:
        values = results.of(workload, figure)
        return Spread.of(values) if values else None

    return measure


def p99(workload: str, figure: str) -> Measure:
    def measure(results: Results) -> Spread | None:
        values = results.of(workload, figure)
        return Spread(percentile(values, 99), min(values), max(values)) if values else None

    return measure


def bandwidth_share(results: Results) -> Spread | None:
    """What the server's decoding reads a second, over what the memory gives."""
    bytes_per_token = results.facts.get(names.WEIGHT_BYTES, 0)
    rates = results.of(names.streams("Q4_0", 1), names.DECODE)
    limits = results.of(names.KERNELS, names.BANDWIDTH)
    if not rates or not limits:
        return None
    limit = Spread.of(limits).median * 1e9
    return Spread.of([rate * bytes_per_token / limit for rate in rates])


def decode_goal(model_type: str, num_streams: int, limit: float) -> Goal:
    workload = names.streams(model_type, num_streams)
    return Goal(f"decode, {workload}", limit, " x", against_llama(workload, names.DECODE), is_at_least=True)


def tool_goals() -> list[Goal]:
    limits = {"named": (2, 7), "required": (2, 7), "auto": (3, 8)}
    return [
        Goal(f"tool calls, {mode}: pass by which it is {done}", limit, "", ours(names.TOOLS, f"{mode}: {figure}"))
        for mode, (route, dispatch) in limits.items()
        for done, figure, limit in (
            ("routed", "passes to route", route),
            ("dispatched", "passes to dispatch", dispatch),
        )
    ]


GOALS = (
    decode_goal("Q4_0", 1, 2),
    decode_goal("Q4_1", 1, 2),
    Goal("decode, 1 stream: share of the memory bandwidth, server", 0.75, "", bandwidth_share, is_at_least=True),
    Goal("the same, engine alone", 0.75, "", ours(names.KERNELS, "share of the bandwidth"), is_at_least=True),
    decode_goal("Q4_0", 8, 2.5),
    decode_goal("Q4_0", 16, 2.5),
    decode_goal("Q4_1", 8, 3.5),
    decode_goal("Q4_1", 16, 3.5),
    decode_goal("Q4_0", 64, 3),
    Goal("prefill of 1,000 tokens, Q4_0", 2, " x", against_llama(names.prefill(1), names.PREFILL), is_at_least=True),
    Goal("TTFT p50, 40 tokens, nothing to reuse", 0.7, " x", against_llama(names.TTFT_UNIQUE, names.TTFT)),
    Goal("TTFT p50, 40 tokens, head reused", 0.6, " x", against_llama(names.TTFT_SHARED, names.TTFT)),
    Goal("second turn: computed beyond the new tokens", 16, " tokens", ours(names.SECOND_TURN, names.EXCESS)),
    Goal(
        "second turn: TTFT over what is allowed (its share of cold + 10 ms)",
        1,
        " x",
        quotient(names.SECOND_TURN, names.TTFT_SECOND, names.TTFT_ALLOWED),
    ),
    Goal("longest gap of 8 streams beside a 2,000-token prompt", 4, " x their p50", ours(names.MIXED, names.GAP_RATIO)),
    Goal("CPU of gateway and tool host, 16 streams", 5, "% of the engine's", ours(names.RESOURCES, names.CPU_SHARE)),
    Goal("system calls per token, 1 stream", 8, "", ours(names.RESOURCES, names.SYSCALLS)),
    Goal("memory: weights, KV and buffers", 1, " x", against_llama(names.MEMORY, names.GROWN)),
    Goal("memory on top of weights and KV, all processes", 450, " MiB", ours(names.MEMORY, names.ON_TOP)),
    *tool_goals(),
    Goal("last needed token to the tool's function, p99, 1 stream", 1, " ms", p99(names.TOOLS, names.overhead(1))),
    Goal("last needed token to the tool's function, p99, 16 streams", 5, " ms", p99(names.TOOLS, names.overhead(16))),
    Goal("idle, all processes", 0.1, "% of a core", ours(names.RESOURCES, names.IDLE)),
    Goal(
        "tokens/s beside a process that keeps one core busy",
        45,
        "% of idle",
        quotient(names.NEIGHBOUR, names.BESIDE, names.UNDISTURBED, 100),
        is_at_least=True,
    ),
)
