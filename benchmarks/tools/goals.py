"""Owns the goals of the tools benchmark. Measures nothing."""

from benchmarks.goals import Goal, ours
from benchmarks.results import Results, Spread

LOOP = "an agent loop, one call after the other"
INLINE = "one stream, inline"
INTERLEAVED = "one stream, interleaved"


def workload(num_calls: int, delay_ms: int) -> str:
    return f"{num_calls} independent call{'s' * (num_calls > 1)} of {delay_ms} ms"


TOOK = "end to end, s"
DISTANCE = "over the bound, %"
HIDDEN = "tool time hidden behind decode, %"
TALK = "1 call of 300 ms, 100 tokens of talk, interleaved"


def _worst_distance(results: Results) -> Spread | None:
    """The workload that is farthest from its bound."""
    spreads = [
        Spread.of(by_server["midstream"])
        for (_, figure), by_server in results.values.items()
        if figure.endswith(DISTANCE) and by_server.get("midstream")
    ]
    return max(spreads, key=lambda spread: spread.median, default=None)


def _over_loop(results: Results) -> Spread | None:
    """llama.cpp's loop over our one stream."""
    loop = results.of(workload(4, 300), f"{LOOP}: {TOOK}", "llama.cpp")
    stream = results.of(workload(4, 300), f"{INLINE}: {TOOK}")
    if not loop or not stream:
        return None
    pairs = [a / b for a, b in zip(loop, stream, strict=False)]
    return Spread(Spread.of(loop).median / Spread.of(stream).median, min(pairs), max(pairs))


GOALS = (
    Goal("4 tools of 300 ms: llama.cpp's loop over one stream, end to end", 3, "x", _over_loop, is_at_least=True),
    Goal("distance to the bound, the worst of all workloads", 5, "%", _worst_distance),
    Goal("tool time hidden behind decode, interleaved", 90, "%", ours(TALK, HIDDEN), is_at_least=True),
)
