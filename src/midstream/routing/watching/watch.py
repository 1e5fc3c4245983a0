"""Owns the watch over one turn's tokens: what is text, what is a call, what may come next. Runs no tool.

Implements `engine.watch.TokenWatch` (the engine is handed it and knows only that Protocol).
"""

import sys
from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from midstream.messages import (
    ArgumentsDelta,
    CallAbandoned,
    CallClosed,
    CallNamed,
    CallPartial,
    CallReady,
    CallRouted,
    ChoiceMode,
    Mark,
    ReasoningDelta,
    TextDelta,
    ToolPlan,
    WatchEvent,
)
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.call import Call, WatchedTool
from midstream.routing.watching.dialects import dialect_named, marker_ids
from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.events import (
    ArgumentEnd,
    ArgumentPart,
    ArgumentsEnd,
    ArgumentsText,
    CallBegin,
    CallEnd,
    CallInvalid,
    NameEnd,
    NamePart,
    ParseEvent,
    RawArgument,
    Reasoning,
    Text,
    TypedArgument,
)
from midstream.routing.watching.grammar import Grammars
from midstream.routing.watching.names import NameTrie
from midstream.routing.watching.parser import CallParser
from midstream.routing.watching.turn_grammar import TurnGrammar


class Watches:
    """Makes the watch of each turn. One per engine process: it holds the compiled grammars."""

    def __init__(self, tokenizer: Tokenizer, *, constrains: bool = True) -> None:
        self._grammars = Grammars(tokenizer) if constrains else None
        self._tokenizer = tokenizer
        self._by_dialect: dict[str, list[bytes]] = {}
        self._added_tokens = tokenizer.added_tokens
        self._eos_token_ids = tuple(tokenizer.eos_token_ids)

    def make(self, plan: ToolPlan, num_earlier_calls: int) -> "CallWatch":
        dialect = dialect_named(plan.dialect)
        token_bytes = self._token_bytes(dialect)
        banned = list(dialect.result_frames)
        if plan.choice.mode is ChoiceMode.NONE:
            banned += dialect.calls.openings
        return CallWatch(
            plan,
            dialect,
            TurnGrammar(self._grammars, dialect, plan, token_bytes, self._eos_token_ids),
            num_earlier_calls=num_earlier_calls,
            banned_token_ids=(
                *plan.banned_token_ids,
                *self._ids_of(banned),
            ),
        )

    def _ids_of(self, texts: Iterable[str]) -> set[int]:
        """The tokens of these texts that there are, but for those that end a turn: some models end one with a frame."""
        ids = {self._added_tokens[text] for text in texts if text in self._added_tokens}
        return ids - set(self._eos_token_ids)

    def _token_bytes(self, dialect: Dialect) -> list[bytes]:
        """The tokens' text as the dialect reads it: one list for each, since every turn needs it."""
        if dialect.name not in self._by_dialect:
            shown = marker_ids(dialect, self._tokenizer.special_tokens)
            self._by_dialect[dialect.name] = self._tokenizer.all_token_bytes(shown)
        return self._by_dialect[dialect.name]


def max_calls(plan: ToolPlan) -> int:
    """Calls that a turn may hold: those that were asked for by name, one, or as many as the model wants."""
    if plan.choice.names:
        return len(plan.choice.names)
    return sys.maxsize if plan.parallel else 1


class CallWatch:
    """The watch of one turn. Pure but for its grammar: the same tokens give the same events."""

    def __init__(
        self,
        plan: ToolPlan,
        dialect: Dialect,
        grammar: TurnGrammar,
        *,
        num_earlier_calls: int = 0,
        banned_token_ids: tuple[int, ...] = (),
    ) -> None:
        is_watching = plan.choice.mode is not ChoiceMode.NONE and bool(plan.tools)
        self._parser = CallParser(
            dialect.markers(plan.reasoning_markers, has_calls=is_watching, is_reasoning=plan.is_reasoning)
        )
        self._grammar = grammar
        self._tools = {spec.name: WatchedTool(spec) for spec in plan.tools} if is_watching else {}
        self._names = NameTrie(self._tools)
        self._num_calls_left = max_calls(plan)
        self._call: Call | None = None
        self.server_calls: list[str] = []
        self.has_client_calls = False
        self.num_calls = num_earlier_calls
        self.banned_token_ids = banned_token_ids

    @property
    def is_in_call(self) -> bool:
        return self._call is not None

    def feed(self, token_id: int, text: str, mark: Mark) -> list[WatchEvent]:
        events: list[WatchEvent] = []
        for event in self._parser.feed(text):
            events += self._on_event(event, mark)
        self._grammar.advance(token_id, text, self._parser)
        return events

    def end_turn(self, text: str, mark: Mark) -> list[WatchEvent]:
        return self._finish(text, mark, is_cut=False)

    def cut(self, text: str, mark: Mark) -> list[WatchEvent]:
        return self._finish(text, mark, is_cut=True)

    @property
    def is_at_boundary(self) -> bool:
        return self._parser.is_at_boundary

    def forced_tokens(self) -> list[int]:
        return self._grammar.forced_tokens(self._parser)

    def expected_text(self) -> str:
        return self._grammar.expected_text(self._parser)

    def num_allowed(self, token_ids: list[int]) -> int:
        return self._grammar.num_allowed(token_ids)

    def fill_mask(self, bitmask: npt.NDArray[np.int32]) -> bool:
        return self._grammar.fill_mask(bitmask, self._parser)

    def _finish(self, text: str, mark: Mark, *, is_cut: bool) -> list[WatchEvent]:
        events: list[WatchEvent] = []
        # One by one: the parser must hear of a rejection before it reads on.
        for event in chain(self._parser.feed(text), self._parser.finish(is_cut=is_cut)):
            events += self._on_event(event, mark)
        return events

    def _on_event(self, event: ParseEvent, mark: Mark) -> list[WatchEvent]:
        match event:
            case Text(text):
                return [TextDelta(text)]
            case Reasoning(text):
                return [ReasoningDelta(text)]
            case CallBegin() | CallEnd():
                self._call = None
            case NamePart(text):
                return self._route(self._names.resolve(text), mark)
            case NameEnd(name, call_id):
                return self._on_name(name, call_id, mark)
            case ArgumentsText(text):
                self._open_call().has_text = True
                return self._arguments_delta(text)
            case ArgumentEnd(name, value_json):
                return self._on_argument(name, value_json, mark)
            case ArgumentPart(name, text):
                return self._on_part(name, text)
            case TypedArgument(name, value_json):
                return self._on_transcoded(name, value_json, mark)
            case RawArgument(name, text):
                return self._on_raw(name, text, mark)
            case ArgumentsEnd():
                return self._on_arguments_end(mark)
            case CallInvalid(raw_text, reason, is_cut):
                return self._on_invalid(raw_text, reason, is_cut=is_cut)
        return []

    def _route(self, name: str | None, mark: Mark) -> list[WatchEvent]:
        if name is None or self._call is not None or not self._num_calls_left:
            return []
        self._call = Call(self.num_calls, self._tools[name])
        self.num_calls += 1
        return [CallRouted(self._call.index, name, self._call.tool.spec.runs_on, mark)]

    def _on_name(self, name: str, call_id: str | None, mark: Mark) -> list[WatchEvent]:
        events = self._route(name if name in self._tools else None, mark)
        call = self._call
        if call is None or call.tool.spec.name != name:
            has_room = self._num_calls_left > 0
            self._parser.reject(f"no tool {name!r} is enabled" if has_room else "no more calls were asked for")
            return events
        call.is_named = True
        if call.tool.takes_parts:
            self._parser.tell_parts()
        return [*events, CallNamed(call.index, name, call_id)]

    def _arguments_delta(self, text: str) -> list[WatchEvent]:
        call = self._open_call()
        # A server tool gets its arguments as a frame: the text goes to clients alone.
        return [] if call.tool.is_server else [ArgumentsDelta(call.index, text)]

    def _on_part(self, name: str, text: str) -> list[WatchEvent]:
        call = self._open_call()
        field_index = call.tool.layout.index.get(name)
        return [] if field_index is None else [CallPartial(call.index, field_index, text)]

    def _on_raw(self, name: str, text: str, mark: Mark) -> list[WatchEvent]:
        value_json = self._open_call().coerced(name, text)
        if value_json is None:
            self._parser.reject(f"argument {name!r} is not what its schema asks for")
            return []
        return self._on_transcoded(name, value_json, mark)

    def _on_transcoded(self, name: str, value_json: str, mark: Mark) -> list[WatchEvent]:
        call = self._open_call()
        piece = call.json_piece(name, value_json)
        # What the call does not take is not told: it may not even be text that can be sent.
        events = self._on_argument(name, value_json, mark)
        return [*self._arguments_delta(piece), *events] if call.has(name) else []

    def _on_argument(self, name: str, value_json: str, mark: Mark) -> list[WatchEvent]:
        call = self._open_call()
        fault = call.put(name, value_json)
        if fault is not None:
            self._parser.reject(fault)
            return []
        frame = call.ready_frame()
        return [CallReady(call.index, frame, mark, is_closed=False)] if frame is not None else []

    def _on_arguments_end(self, mark: Mark) -> list[WatchEvent]:
        call = self._open_call()
        fault = call.close()
        if fault is not None:
            self._parser.reject(fault)
            return []
        self._num_calls_left -= 1
        if call.tool.is_server:
            self.server_calls.append(call.tool.spec.name)
        else:
            self.has_client_calls = True
        ready = [] if call.has_text else self._arguments_delta(call.json_end())
        frame = call.closing_frame()
        if frame is not None:
            ready.append(CallReady(call.index, frame, mark, is_closed=True))
        return [*ready, CallClosed(call.index, mark)]

    def _on_invalid(self, raw_text: str, reason: str, *, is_cut: bool) -> list[WatchEvent]:
        call, self._call = self._call, None
        events: list[WatchEvent] = []
        if call is not None:
            events.append(CallAbandoned(call.index, reason, is_cut))
        if raw_text and not (is_cut and call is not None and call.is_named):
            events.append(TextDelta(raw_text))
        return events

    def _open_call(self) -> Call:
        assert self._call is not None, "arguments before a name"
        return self._call
