"""Owns the schedule: which server is started when, and what it is asked. One server runs at a time.

A stage that fails leaves a row that says so and why; the next one goes on.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.load import run, run_streams
from benchmarks.models import ModelFacts, facts
from benchmarks.plan import Plan
from benchmarks.prompts import Prompts
from benchmarks.results import LLAMA, MIDSTREAM, TRANSFORMERS, Results
from benchmarks.servers import ROOT, START, Profile, Server, llama_cpp, midstream

from benchmarks import names, processes, tool_calls, workloads

Run = tuple[str, Coroutine[Any, Any, dict[str, Any]]]
"""A workload's name and one run of it."""


class Bench:
    """Runs stages and keeps what they measured."""

    def __init__(self, plan: Plan, models: dict[str, Path], tool_model: Path | None) -> None:
        self.plan = plan
        self.models = models
        self.results = Results()
        self._tool_model = tool_model
        self._prompts = Prompts(models["Q4_1"])
        self._facts: ModelFacts = facts(models["Q4_0"])
        self._started_s = time.monotonic()
        self.results.facts[names.WEIGHT_BYTES] = self._facts.bytes_per_token

    @property
    def stages(self) -> dict[str, Callable[[], None]]:
        return {
            "kernels": self.kernels,
            "sixteen": lambda: self.alternate(self.plan.rounds, Profile(self.models["Q4_0"]), self._all_runs),
            "sixty-four": lambda: self.alternate(
                self.plan.rounds, Profile(self.models["Q4_0"], 64, 512), self._crowd_runs
            ),
            "Q4_1": lambda: self.alternate(
                self.plan.type_rounds, Profile(self.models["Q4_1"], slot_tokens=512), self._type_runs("Q4_1")
            ),
            "resources": self.resources,
            "memory": self.memory,
            "tools": self.tools,
            # What no goal is about comes last: the time may be over by then.
            "Q8_0": lambda: self.alternate(
                self.plan.type_rounds, Profile(self.models["Q8_0"], slot_tokens=512), self._type_runs("Q8_0")
            ),
            "transformers": self.transformers,
        }

    def run_all(self) -> None:
        for name in self.plan.left_out:
            self.results.miss(f"stage {name}", "left out of the quick run")
        self.run([name for name in self.stages if name not in self.plan.left_out])

    def run(self, stage_names: list[str]) -> None:
        for name in stage_names:
            if time.monotonic() - self._started_s > self.plan.limit_s:
                self.results.miss(f"stage {name}", f"{self.plan.limit_s / 60:g} minutes were over before it began")
                continue
            self.say(name)
            with self._noting_failure(f"stage {name}"), self._watching_others(f"while measuring, stage {name}"):
                self.stages[name]()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started_s:6.1f} s] {text}", file=sys.stderr, flush=True)

    # --- server beside server ---

    def alternate(
        self,
        num_rounds: int,
        profile: Profile,
        make_runs: Callable[[Server], list[Run]],
        servers: tuple[str, ...] = (MIDSTREAM, LLAMA),
    ) -> None:
        model_type = next(name for name, path in self.models.items() if path == profile.model)
        session = f"while measuring {' and '.join(servers)}, {model_type}, {profile.num_slots} slots"
        for number in range(num_rounds):
            for name in servers:
                self.say(f"  round {number + 1} of {num_rounds}: {name}, {model_type}")
                meanwhile = self._watching_others(session, name)
                with self._noting_failure(name), meanwhile, START[name](profile) as server:
                    self._prompts.seed(number)
                    run(workloads.warm_up(server, self._prompts))
                    for workload, one_run in make_runs(server):
                        with self._noting_failure(f"{workload}: {name}"):
                            self.results.add(workload, name, run(one_run))

    def _all_runs(self, server: Server) -> list[Run]:
        plan, prompts = self.plan, self._prompts
        return [
            *self._decodes(server, "Q4_0", (1, 1, 1, 4, 8, 16)),
            (names.TTFT_UNIQUE, workloads.ttft(server, prompts, plan.ttft_requests, shares_head=False)),
            (names.TTFT_SHARED, workloads.ttft(server, prompts, plan.ttft_requests, shares_head=True)),
            *[(names.prefill(count), workloads.prefill(server, prompts, count)) for count in (1, 1, 4)],
            (names.SECOND_TURN, workloads.second_turn(server, prompts)),
            (names.MIXED, workloads.mixed(server, prompts)),
        ]

    def _crowd_runs(self, server: Server) -> list[Run]:
        return [(names.streams("Q4_0", 64), workloads.decode(server, self._prompts, 64, self.plan.crowd_tokens))]

    def _type_runs(self, model_type: str) -> Callable[[Server], list[Run]]:
        return lambda server: self._decodes(server, model_type, (1, 1, 8, 16))

    def _decodes(self, server: Server, model_type: str, counts: tuple[int, ...]) -> list[Run]:
        return [
            (names.streams(model_type, count), workloads.decode(server, self._prompts, count, self.plan.tokens))
            for count in counts
        ]

    def transformers(self) -> None:
        """On the Q4_0 file's weights as float32; shorter answers, because it is slow."""

        def runs(server: Server) -> list[Run]:
            return [
                (f"{names.streams('Q4_0', count)}, 64 tokens", workloads.decode(server, self._prompts, count, 64))
                for count in (1, 8)
            ]

        self.alternate(self.plan.transformers_rounds, Profile(self.models["Q4_0"]), runs, (MIDSTREAM, TRANSFORMERS))

    # --- midstream by itself ---

    def kernels(self) -> None:
        command = [sys.executable, "-m", "benchmarks.kernels", str(self.models["Q4_0"])]
        command += ["--repeats", str(self.plan.repeats), "--tokens", str(self.plan.tokens)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        if ended.returncode != 0:
            raise RuntimeError(ended.stderr[-300:])
        figures = json.loads(ended.stdout)
        self.results.add(names.MEMORY, MIDSTREAM, {names.GROWN: figures.pop(names.GROWN)})
        self.results.add(names.KERNELS, MIDSTREAM, figures)
        self.results.facts["bandwidth read by"] = ended.stderr.strip().splitlines()[-1]

    def tools(self) -> None:
        figures = run(tool_calls.run(self.models["Q4_1"], ["named", "required"], self.plan.tool_calls))
        self.results.add(names.TOOLS, MIDSTREAM, figures)
        if self._tool_model is None:
            self.results.miss(
                "tool calls with tool_choice auto",
                "the embedded model never calls a tool by itself; give one that does with --tool-model",
            )
            return
        figures = run(tool_calls.run(self._tool_model, ["auto", "named"], self.plan.tool_calls))
        for name in [name for name in figures if name.startswith("auto")]:
            self.results.add(names.TOOLS, MIDSTREAM, {name: figures.pop(name)})
        self.results.add(names.TOOLS_OTHER, MIDSTREAM, figures)

    def resources(self) -> None:
        """System calls and a busy neighbour, both servers; CPU shares and idling, midstream."""
        for name in (MIDSTREAM, LLAMA):
            self._prompts.seed(0)
            with START[name](Profile(self.models["Q4_0"], slot_tokens=1024)) as server:
                run(workloads.warm_up(server, self._prompts))
                with self._noting_failure(f"{names.NEIGHBOUR}: {name}"):
                    self._neighbour(server)
                with self._noting_failure(f"{names.SYSCALLS}: {name}"):
                    self._syscalls(server)
                if name == MIDSTREAM:
                    self._cpu_shares(server)
                    self._idle(server)

    def _neighbour(self, server: Server) -> None:
        for _ in range(self.plan.repeats):
            alone = self._decode(server, 1)
            with processes.busy_core():
                beside = self._decode(server, 1)
            self.results.add(
                names.NEIGHBOUR,
                server.name,
                {names.UNDISTURBED: alone[names.DECODE], names.BESIDE: beside[names.DECODE]},
            )

    def _syscalls(self, server: Server) -> None:
        counter = processes.syscall_counter()
        if counter is None:
            self.results.miss(names.SYSCALLS, "neither perf nor strace may count here; install strace")
            return
        body = workloads.body(server, self._prompts.unique(workloads.SHORT_TOKENS), self.plan.tokens)
        with processes.count_syscalls(counter, server.pids) as count:
            run(run_streams(server.port, [body]))
        self.results.add(names.RESOURCES, server.name, {names.SYSCALLS: count.value / self.plan.tokens})
        self.results.facts["system calls counted with"] = counter

    def _cpu_shares(self, server: Server) -> None:
        roles = server.pids_by_role()
        engine, others = [roles.pop("engine")], list(roles.values())
        for _ in range(self.plan.repeats):
            before = processes.cpu_s(engine), processes.cpu_s(others)
            self._decode(server, 16)
            engine_s = processes.cpu_s(engine) - before[0]
            others_s = processes.cpu_s(others) - before[1]
            num_tokens = 16 * self.plan.tokens
            self.results.add(
                names.RESOURCES,
                MIDSTREAM,
                {
                    names.CPU_SHARE: 100 * others_s / engine_s,
                    "CPU of the engine a token, 16 streams, µs": 1e6 * engine_s / num_tokens,
                    "CPU of gateway and tool host a token, 16 streams, µs": 1e6 * others_s / num_tokens,
                },
            )

    def _idle(self, server: Server) -> None:
        before_s = processes.cpu_s(server.pids)
        time.sleep(self.plan.idle_s)
        used_s = processes.cpu_s(server.pids) - before_s
        self.results.add(names.RESOURCES, MIDSTREAM, {names.IDLE: 100 * used_s / self.plan.idle_s})

    def memory(self) -> None:
        """Both with the same KV capacity, every slot filled once, nothing kept elsewhere."""
        profile = Profile(self.models["Q4_0"], slot_tokens=512, llama_cache_mib=0)
        expected = self._facts.tensor_bytes + profile.num_tokens * self._facts.kv_bytes_per_token
        for start in (midstream, llama_cpp):
            self._prompts.seed(0)
            with start(profile) as server:
                bodies = [workloads.body(server, self._prompts.unique(480), 8) for _ in range(profile.num_slots)]
                run(run_streams(server.port, bodies))
                total = processes.pss_bytes(server.pids)
                figures = {names.TOTAL_MEMORY: total / 2**20}
                if server.name == MIDSTREAM:
                    figures[names.ON_TOP] = (total - expected) / 2**20
                else:
                    figures[names.GROWN] = (total - server.facts["pss_before"]) / 2**20
                    self.results.facts["llama.cpp built with"] = server.facts["system"]
                self.results.add(names.MEMORY, server.name, figures)

    def _decode(self, server: Server, num_streams: int) -> dict[str, float]:
        return run(workloads.decode(server, self._prompts, num_streams, self.plan.tokens))

    @contextmanager
    def _watching_others(self, workload: str, server: str = MIDSTREAM) -> Iterator[None]:
        """What else ran meanwhile: figures from beside a busy neighbour are no figures.

        Whatever the block starts has to end within it.
        """
        start_s, own_s, (machine_s, steal_s) = time.monotonic(), processes.own_cpu_s(), processes.machine_cpu_s()
        yield
        took_s = time.monotonic() - start_s
        after_s, steal_after_s = processes.machine_cpu_s()
        others_s = max(0.0, after_s - machine_s - (processes.own_cpu_s() - own_s))
        shares = {names.OTHERS: 100 * others_s / took_s, names.STEAL: 100 * (steal_after_s - steal_s) / took_s}
        self.results.add(workload, server, shares)

    @contextmanager
    def _noting_failure(self, what: str) -> Iterator[None]:
        """Not for KeyboardInterrupt, which ends everything."""
        try:
            yield
        except Exception as error:
            self.say(f"  failed: {what}: {error}")
            self.results.miss(what, f"{type(error).__name__}: {error}")
