"""Show where a step's time goes: the kernels' parts, and what the loop's Python adds.

    python -m benchmarks.breakdown [MODEL.gguf] [--batches 1,8,16,64]

Owns the table of docs/performance.md. The engine runs in this process; sequences of 64 tokens decode 64 more.
"""

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kernels import EngineAlone

from midstream.engine.kernels.cpu.native_model import PARTS, NativeModel
from midstream.modelfile.resolve import resolve

_PROMPT_TOKENS, _TOKENS = 64, 64


def measure(engine: EngineAlone, model: NativeModel, batch: int) -> dict[str, float]:
    """Milliseconds a step: `step`, the kernels' parts, and `loop`, all that is neither."""
    times: list[dict[str, int]] = []

    @contextmanager
    def around() -> Iterator[None]:
        with model.timed() as part_ns:
            yield
        times.append(part_ns)

    steps_s = engine.run(batch, _PROMPT_TOKENS, _TOKENS, around)
    parts = {part: statistics.median(part_ns[part] for part_ns in times) / 1e6 for part in PARTS}
    step_ms = statistics.median(steps_s) * 1e3
    return {"step": step_ms, **parts, "loop": step_ms - sum(parts.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=None)
    parser.add_argument("--batches", default="1,8,16,64")
    arguments = parser.parse_args()
    engine = EngineAlone(arguments.model or resolve().path)
    model = engine.engine.runner.model  # type: ignore[attr-defined]
    batches = [int(batch) for batch in arguments.batches.split(",")]
    columns = [measure(engine, model, batch) for batch in batches]
    print(f"| ms a step | {' | '.join(f'{batch} at once' for batch in batches)} |")
    print("| --- " * (len(batches) + 1) + "|")
    for part in columns[0]:
        print(f"| {part} | {' | '.join(f'{column[part]:.2f}' for column in columns)} |")


if __name__ == "__main__":
    main()
