"""Measure midstream beside llama.cpp's server and transformers', and hold it against its goals.

    make bench          # docs/benchmarks.json and docs/benchmarks.md
    make bench-quick    # build/bench-quick.json and .md: fewer rounds, wider spreads

Owns the command: what is run and where the report goes. Loads are bounded; servers listen on loopback only.
"""

import argparse
import datetime
import shlex
import signal
import sys
import time
from pathlib import Path

from benchmarks.machine import machine, versions
from benchmarks.models import model_files
from benchmarks.plan import QUICK, Plan
from benchmarks.servers import ROOT
from benchmarks.stages import Bench

from benchmarks import report


def main() -> None:
    arguments = _parser().parse_args()
    # What was started is ended by its context, so every way out has to be an exception.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    started_s = time.monotonic()
    facts = {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "command": shlex.join(["python", "-m", "benchmarks.bench", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
    }
    bench = Bench(QUICK if arguments.quick else Plan(), model_files(ROOT / "build" / "bench"), arguments.tool_model)
    bench.results.facts = facts | bench.results.facts
    try:
        bench.run(arguments.only.split(",")) if arguments.only else bench.run_all()
    except KeyboardInterrupt:
        sys.exit("\nstopped; nothing was written")
    bench.results.facts["took, minutes"] = round((time.monotonic() - started_s) / 60, 1)
    path = arguments.out or (ROOT / ("build/bench-quick" if arguments.quick else "docs/benchmarks"))
    report.write(path, bench.results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under 5 minutes")
    parser.add_argument("--only", help="some stages, comma-separated; see benchmarks/stages.py")
    parser.add_argument("--tool-model", type=Path, help="a .gguf that calls tools by itself, for tool_choice auto")
    parser.add_argument("--out", type=Path, help="where the report goes, without its suffix")
    return parser


if __name__ == "__main__":
    main()
