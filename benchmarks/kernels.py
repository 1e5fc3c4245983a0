"""Owns the engine alone: its decode step in this process, held against the memory bandwidth measured beside it.

    python -m benchmarks.kernels MODEL.gguf [--repeats 3]

Goes through `build_runner` and the `Engine` only, whatever lies below them. Prints one JSON object: each figure's
values, one a repeat, bandwidth and decoding in turns.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
from benchmarks.models import facts

from benchmarks import names, processes
from midstream.engine.build import build_engine, build_runner
from midstream.engine.loop import Engine
from midstream.engine.prefill_pacer import PrefillPacer
from midstream.engine.watch import plain_watch
from midstream.messages import AddRequest, Command, EngineOptions, SamplingParams, StepOutput
from midstream.modelfile.resolve import resolve
from midstream.modelfile.tokenizer import Tokenizer
from midstream.telemetry.logs import configure_logs

THREADS = 2
_BUFFER_BYTES = 512 << 20  # many times any last-level cache of this class of machine
_ROUNDS = 4
_PROMPT_TOKENS = 40
_SLOT_TOKENS = 512
_CAPACITY_TOKENS = 16 * _SLOT_TOKENS


class Feed:
    """The engine's port without a gateway: commands that were put in, outputs counted and dropped."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.num_open = 0

    def receive(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def wait(self) -> None:
        raise EOFError("nothing is left to do")

    def send(self, output: StepOutput) -> None:
        self.num_open -= sum(each.finished is not None for each in output.outputs)


class _Unpaced(PrefillPacer):
    """Prompts are computed as fast as they can be, so that all sequences decode together."""

    def limit(self, num_decoding: int, num_prefilling: int) -> int:
        return self._max_tokens


class EngineAlone:
    """An engine with `_CAPACITY_TOKENS` of KV, and how its memory grew while it was built and filled."""

    def __init__(self, model: Path) -> None:
        self._next_id = 0
        self.feed = Feed()
        self._random = np.random.default_rng(7)
        files = resolve(str(model))
        tokenizer = Tokenizer.load(files)
        options = _options(model)
        before = processes.pss_bytes([os.getpid()])
        runner, budget = build_runner(options, files, tokenizer)
        self.engine: Engine = build_engine(options, self.feed, runner, budget, tokenizer, plain_watch)
        self.engine.scheduler.pacer = _Unpaced(options.max_num_batched_tokens)
        self._vocab_size = tokenizer.vocab_size
        self.run(_CAPACITY_TOKENS // _SLOT_TOKENS, _SLOT_TOKENS - 8, 4)
        self.grown_bytes = processes.pss_bytes([os.getpid()]) - before

    def run(
        self,
        num_sequences: int,
        num_prompt_tokens: int,
        num_tokens: int,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> list[float]:
        """Seconds of each step in which every sequence decodes one token; `around` is entered for each of them."""
        for _ in range(num_sequences):
            self._next_id += 1
            token_ids = self._random.integers(100, self._vocab_size, num_prompt_tokens).tolist()
            sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
            self.feed.commands.append(AddRequest(self._next_id, token_ids, sampling))
        self.feed.num_open = num_sequences
        took_s = []
        while self.feed.num_open:
            running = self.engine.scheduler.running
            counts = len(running) == num_sequences and not any(seq.is_prefilling for seq in running)
            with around() if counts else nullcontext():
                start_s = time.perf_counter()
                self.engine.step()
                if counts:
                    took_s.append(time.perf_counter() - start_s)
        return took_s


def _options(model: Path) -> EngineOptions:
    return EngineOptions(
        model=str(model),
        dtype="float32",
        kv_cache_bytes=_CAPACITY_TOKENS * facts(model).kv_bytes_per_token,
        block_size=16,
        max_num_seqs=64,
        max_num_batched_tokens=256,
        max_model_len=_SLOT_TOKENS,
        num_threads=THREADS,
        prompt_lookup=False,  # a step is to be one token a sequence
    )


class Bandwidth:
    """A buffer that no cache holds, and the compiled reader; torch's sum where there is no compiler."""

    def __init__(self) -> None:
        self._words = np.ones(_BUFFER_BYTES // 8, dtype=np.uint64)
        self._library = _compile()
        self.how = f"bandwidth.c, {THREADS} threads" if self._library else f"torch.sum, {THREADS} threads"

    def measure(self) -> float:
        """Bytes a second; the best of several, since others only ever slow it down."""
        return max(self._read() for _ in range(3))

    def _read(self) -> float:
        if self._library is None:
            return self._read_torch()
        total = ctypes.c_uint64(0)
        pointer = self._words.ctypes.data_as(ctypes.c_void_p)
        return float(self._library.read_bandwidth(pointer, self._words.size, THREADS, _ROUNDS, ctypes.byref(total)))

    def _read_torch(self) -> float:
        import torch

        torch.set_num_threads(THREADS)
        values = torch.from_numpy(self._words.view(np.float32))
        start_s = time.perf_counter()
        for _ in range(_ROUNDS):
            values.sum()
        return _BUFFER_BYTES * _ROUNDS / (time.perf_counter() - start_s)


def _compile() -> ctypes.CDLL | None:
    source = Path(__file__).with_name("bandwidth.c")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "bandwidth.so"
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", str(source), "-o", str(target)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return None
        library = ctypes.CDLL(str(target))
    library.read_bandwidth.restype = ctypes.c_double
    library.read_bandwidth.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    return library


def measure(model: Path, repeats: int, batches: tuple[int, ...], num_tokens: int) -> dict[str, list[float]]:
    alone = EngineAlone(model)
    bandwidth = Bandwidth()
    bytes_per_token = facts(model).bytes_per_token
    figures: dict[str, list[float]] = {names.GROWN: [alone.grown_bytes / 2**20]}
    for _ in range(repeats):
        bytes_per_s = bandwidth.measure()
        figures.setdefault(names.BANDWIDTH, []).append(bytes_per_s / 1e9)
        for batch in batches:
            step_s = statistics.median(alone.run(batch, _PROMPT_TOKENS, num_tokens))
            figures.setdefault(f"decode alone, {batch} at once, tokens/s", []).append(batch / step_s)
            if batch == 1:  # more sequences share one reading of the weights
                share = bytes_per_token / step_s / bytes_per_s
                figures.setdefault("share of the bandwidth", []).append(share)
    print(bandwidth.how, file=sys.stderr)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    configure_logs("warning", as_json=False)  # stdout is for the figures alone, also where the kernels are built first
    print(json.dumps(measure(arguments.model, arguments.repeats, (1, 8, 16), arguments.tokens)))


if __name__ == "__main__":
    main()
