"""Owns an engine with its watch in this process, asked one question at a time. Runs no tool and serves nobody."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.models import facts
from benchmarks.servers import THREADS
from benchmarks.tools.bfcl import Call, Case

from midstream.cli.compose import watch_factory
from midstream.engine.build import build_engine, build_runner
from midstream.engine.loop import Engine
from midstream.engine.watch import TokenWatch, WatchFactory
from midstream.messages import (
    Abort,
    AddRequest,
    ArgumentsDelta,
    CallClosed,
    CallReady,
    CallRouted,
    Command,
    EngineOptions,
    Mark,
    SamplingParams,
    StepOutput,
    ToolPlan,
    WatchEvent,
)
from midstream.modelfile.chat_template import ChatTemplate
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.resolve import resolve
from midstream.modelfile.tokenizer import Tokenizer
from midstream.protocol.btif import Layout, arguments_json

_SLOT_TOKENS = 4096


@dataclass
class Asked:
    """What one question brought. Times are ms, all counted from the turn's first token."""

    events: list[WatchEvent] = field(default_factory=list)
    num_tokens: int = 0
    num_passes: int = 0
    end_ns: int = 0
    first_token_ns: int = 0

    def marks(self, kind: type[CallRouted] | type[CallReady] | type[CallClosed]) -> list[Mark]:
        """The first of each call."""
        found: dict[int, Mark] = {}
        for event in self.events:
            if isinstance(event, kind):
                found.setdefault(event.index, event.mark)
        return [found[index] for index in sorted(found)]

    def ms(self, mark: Mark) -> float:
        return (mark.time_ns - self.first_token_ns) / 1e6

    def calls(self, case: Case) -> list[Call]:
        """The calls that closed, with their last frames."""
        layouts = {tool.name: Layout.of(tool.parameters) for tool in case.tools}
        names = {event.index: event.name for event in self.events if isinstance(event, CallRouted)}
        frames = {event.index: event.frame for event in self.events if isinstance(event, CallReady)}
        closed = [event.index for event in self.events if isinstance(event, CallClosed)]
        return [(names[i], json.loads(arguments_json(frames[i], layouts[names[i]]))) for i in closed]


class _Port:
    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.asked = Asked()
        self.is_done = False

    def receive(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def wait(self) -> None:
        raise EOFError("nothing is left to do")

    def send(self, output: StepOutput) -> None:
        now_ns = time.monotonic_ns()
        for each in output.outputs:
            self.asked.first_token_ns = self.asked.first_token_ns or now_ns
            self.asked.events += [event for event in each.events if not isinstance(event, ArgumentsDelta)]
            self.asked.num_tokens = each.counts.generated
            self.asked.num_passes = each.counts.passes
            self.asked.end_ns = now_ns
            self.is_done = self.is_done or each.is_parked or each.finished is not None


def _unforced(make_watch: WatchFactory) -> WatchFactory:
    def make(plan: ToolPlan | None, num_earlier_calls: int) -> TokenWatch:
        watch = make_watch(plan, num_earlier_calls)
        watch.forced_tokens = list  # type: ignore[method-assign]
        return watch

    return make


class Asker:
    """One engine. `constrains=False`: the grammar is off. `one_a_pass`: nothing is forced or guessed."""

    def __init__(self, model: Path, *, constrains: bool = True, one_a_pass: bool = False) -> None:
        files = resolve(str(model))
        gguf = GgufFile.open(files.path)
        self.tokenizer = Tokenizer.load(files, gguf)
        template = ChatTemplate.load(files, self.tokenizer, gguf)
        assert template is not None
        self._template = template
        self._port = _Port()
        self._next_id = 0
        options = EngineOptions(
            model=str(model),
            dtype="float32",
            kv_cache_bytes=2 * _SLOT_TOKENS * facts(model).kv_bytes_per_token,
            block_size=16,
            max_num_seqs=1,
            max_num_batched_tokens=256,
            max_model_len=_SLOT_TOKENS,
            num_threads=THREADS,
            prompt_lookup=not one_a_pass,
        )
        runner, budget = build_runner(options, files, self.tokenizer)
        make_watch = watch_factory(self.tokenizer, constrains=constrains)
        if one_a_pass:
            make_watch = _unforced(make_watch)
        self._engine: Engine = build_engine(options, self._port, runner, budget, self.tokenizer, make_watch)

    def ask(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]], plan: ToolPlan, limit: int) -> Asked:
        """One turn, to its end."""
        token_ids = self._template.encode_chat(self.tokenizer, messages, tools)
        self._next_id += 1
        self._port.asked, self._port.is_done = Asked(), False
        sampling = SamplingParams(max_tokens=limit, temperature=0.0)
        self._port.commands.append(AddRequest(self._next_id, token_ids, sampling, tool_plan=plan))
        while not self._port.is_done:
            self._engine.step()
        asked = self._port.asked
        self._drop()
        return asked

    def _drop(self) -> None:
        """A turn with calls is parked: nobody brings its results."""
        self._port.commands.append(Abort(self._next_id))
        self._engine.receive()
        self._engine.publish([])
