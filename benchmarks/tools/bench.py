"""Measure tools that run while the model writes, beside an agent loop on llama.cpp, and hold it against the goals.

    make bench-tools    # docs/benchmarks-tools.json and docs/benchmarks-tools.md

Owns the command and its schedule. Servers listen on loopback only; one runs at a time.
"""

import argparse
import datetime
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.load import run
from benchmarks.machine import machine, versions
from benchmarks.models import model_files
from benchmarks.results import LLAMA, MIDSTREAM, Results
from benchmarks.servers import ROOT, Profile, Server, llama_cpp, midstream
from benchmarks.tools import bfcl, dispatch, overlap, partial, preparation
from benchmarks.tools.asking import Asker
from benchmarks.tools.goals import DISTANCE, GOALS, HIDDEN, INLINE, INTERLEAVED, LOOP, TALK, TOOK, workload
from benchmarks.tools.overlap import AskOne
from benchmarks.tools.wait_tools import DELAYS_MS

from benchmarks import report
from midstream.telemetry.logs import configure_logs

COUNTS = (1, 2, 4, 8)
_MODES = {"inline": INLINE, "interleaved": INTERLEAVED}
_TOOLS = ("--tools", "tools.wait_tools", "--max-tool-rounds", "1")
_JUDGED_CASES = 100


class Bench:
    def __init__(self, rounds: int, num_cases: int | None) -> None:
        self.results = Results()
        self._rounds = rounds
        self._num_cases = num_cases
        self._cache = ROOT / "build" / "bench"
        self._model = model_files(self._cache)["Q4_0"]
        self._profile = Profile(self._model, num_slots=4, slot_tokens=2048)
        self._started_s = time.monotonic()

    @property
    def stages(self) -> dict[str, Callable[[], None]]:
        return {
            "overlap": self.overlap,
            "dispatch": self.dispatch,
            "preparation": self.preparation,
            "partial": self.partial,
            "accuracy": self.accuracy,
        }

    def run(self, names: list[str]) -> None:
        for name in names:
            self._say(name)
            try:
                self.stages[name]()
            except Exception as fault:
                self._say(f"failed: {name}: {fault}")
                self.results.miss(f"stage {name}", f"{type(fault).__name__}: {fault}")

    def overlap(self) -> None:
        for number in range(self._rounds):
            self._say(f"  round {number + 1} of {self._rounds}")
            with llama_cpp(self._profile) as server:
                self._loops(server, overlap.ask_llama)
            with midstream(self._profile, *_TOOLS) as server:
                self._loops(server, overlap.ask_midstream)
                self._streams(server)

    def _loops(self, server: Server, ask: AskOne) -> None:
        run(overlap.agent_loop(server, ask, 1, DELAYS_MS[0]))  # warm
        for delay_ms in DELAYS_MS:
            for num_calls in COUNTS:
                took_s = run(overlap.agent_loop(server, ask, num_calls, delay_ms))
                self.results.add(workload(num_calls, delay_ms), server.name, {f"{LOOP}: {TOOK}": took_s})

    def _streams(self, server: Server) -> None:
        run(overlap.one_stream(server, "inline", 1, DELAYS_MS[0]))  # warm
        for delay_ms in DELAYS_MS:
            for num_calls in COUNTS:
                for mode, name in _MODES.items():
                    stream = run(overlap.one_stream(server, mode, num_calls, delay_ms))
                    figures = {
                        f"{name}: {TOOK}": stream.took_s,
                        f"{name}: tools beside tools, s": stream.tools_beside_tools_s,
                        f"{name}: tools beside decode, s": stream.tools_beside_decode_s,
                        f"{name}: longest wait of a result, s": stream.wait_s,
                        f"{name}: {DISTANCE}": 100 * stream.distance,
                    }
                    self.results.add(workload(num_calls, delay_ms), MIDSTREAM, figures)
        hidden = [100 * run(overlap.hidden_share(server, 300)) for _ in range(3)]
        self.results.add(TALK, MIDSTREAM, {HIDDEN: hidden})

    def dispatch(self) -> None:
        asker = Asker(self._model)
        for category in dispatch.TIMED:
            figures, num_without = dispatch.times_to_dispatch(asker, category, self._cache, self._num_cases)
            figures["turns cut before a call was whole"] = [float(num_without)]
            self.results.add(f"BFCL {category}", MIDSTREAM, figures)
        asker = Asker(self._model, one_a_pass=True)
        for category in dispatch.TIMED:
            times_ms = dispatch.whole_turns_ms(asker, category, self._cache, self._num_cases)
            self.results.add(f"BFCL {category}", MIDSTREAM, {"turn's end, one token a pass: ms": times_ms})

    def preparation(self) -> None:
        self.results.add("preparation of a call, BFCL simple", MIDSTREAM, preparation.measure(self._cache))

    def partial(self) -> None:
        arguments = ("--tools", "tools.partial_tools", "--max-tool-rounds", "1")
        with midstream(self._profile, *arguments) as server:
            for number in range(self._rounds + 1):
                for kind in partial.KINDS:
                    for way in partial.WAYS:
                        from_request_s, from_call_s = run(partial.times_to_result_s(server, kind, way, number))
                        if number:  # the first warms
                            figures = {
                                f"argument {way}: request to result, s": from_request_s,
                                f"argument {way}: call's end to result, s": from_call_s,
                            }
                            self.results.add(f"partial execution: {kind}", MIDSTREAM, figures)

    def accuracy(self) -> None:
        num_cases = min(_JUDGED_CASES, self._num_cases or _JUDGED_CASES)
        for category, figures in dispatch.accuracy(self._model, self._cache, num_cases).items():
            shares = {name: [100 * sum(rights) / len(rights)] for name, rights in figures.items()}
            named = {f"{name}, % of {num_cases}": values for name, values in shares.items()}
            self.results.add(f"BFCL {category}", MIDSTREAM, named)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started_s:6.1f} s] {text}", file=sys.stderr, flush=True)


def main() -> None:
    arguments = _parser().parse_args()
    configure_logs("warning", as_json=False)
    started_s = time.monotonic()
    facts: dict[str, Any] = {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "command": shlex.join(["python", "-m", "benchmarks.tools.bench", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions() | {"bfcl-eval": bfcl.VERSION},
    }
    bench = Bench(arguments.rounds, arguments.cases)
    bench.run(arguments.only.split(",") if arguments.only else list(bench.stages))
    bench.results.facts = facts | {"took, minutes": round((time.monotonic() - started_s) / 60, 1)}
    report.write(
        arguments.out or ROOT / "docs/benchmarks-tools", bench.results, GOALS, "Benchmarks: tools", _HOW_TO_READ
    )


_HOW_TO_READ = f"""\
Medians; least to most in brackets. The model is SmolLM2-135M, Q4_0, 2 threads; its answers are short and its values
often wrong, which costs no time. In the loop on {LLAMA} each call is held to its form by a JSON schema. The bound of a
stream is the longest way through one of its calls: its dispatch, its tool's time, and what is decoded after the last
result."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of the overlap workload, servers alternating")
    parser.add_argument("--cases", type=int, help="of each BFCL category; all by default")
    parser.add_argument(
        "--only", help="some stages, comma-separated: overlap, dispatch, preparation, partial, accuracy"
    )
    parser.add_argument("--out", type=Path, help="where the report goes, without its suffix")
    return parser


if __name__ == "__main__":
    main()
