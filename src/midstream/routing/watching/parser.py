"""Owns the state machine that finds calls and reasoning in a turn's text. Pure: no tokens, no tools, no clock.

    TEXT ──open marker──▶ BEFORE ──{──▶ OBJECT ──}──▶ AFTER ──close marker──▶ TEXT
     │ ▲                    │ anything else │ malformed or rejected
     ▼ └── </think>         └──────▶ text ◀─┘
    REASONING

Any way of cutting the text gives the same events, but for how texts are cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from midstream.routing.watching.call_object import CallObject
from midstream.routing.watching.events import (
    ArgumentsEnd,
    CallBegin,
    CallEnd,
    CallInvalid,
    ParseEvent,
    Reasoning,
    Text,
)
from midstream.routing.watching.fences import FenceTracker


@dataclass(frozen=True)
class Markers:
    """What stands around a call, and around reasoning, in a dialect's text."""

    call_open: str | None
    call_close: str
    reasoning_open: str | None = None
    reasoning_close: str = ""


class State(Enum):
    TEXT = auto()
    REASONING = auto()
    BEFORE = auto()
    OBJECT = auto()
    RAW_OBJECT = auto()
    AFTER = auto()


def longest_suffix_that_begins(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


class CallParser:
    """Reads one turn. The consumer may `reject` the call that the event at hand belongs to."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._state = State.TEXT
        self._text = ""
        self._fences = FenceTracker()
        self._object = CallObject()
        self._raw = ""
        self._rejected: str | None = None
        self._is_closed = False
        # Whitespace at the turn's start, after reasoning and after a call waits: it is nobody's when a call or the
        # end comes next.
        self._space: str | None = ""
        self.num_calls = 0
        """Calls that have ended, whole."""

    @property
    def is_in_call(self) -> bool:
        return self._state in (State.BEFORE, State.OBJECT, State.AFTER)

    @property
    def num_unread(self) -> int:
        """Characters that were fed and are neither text nor call yet."""
        return len(self._text)

    @property
    def may_begin_call(self) -> bool:
        """True while the text ends in what may be the beginning of a call's marker."""
        return bool(self.rest_of_marker)

    @property
    def rest_of_marker(self) -> str:
        """What a call's marker that has perhaps begun still lacks."""
        opening = self._markers.call_open
        if self._state is not State.TEXT or opening is None or self._fences.is_inside:
            return ""
        num_begun = longest_suffix_that_begins(self._text, opening)
        return opening[num_begun:] if num_begun else ""

    def feed(self, text: str) -> Iterator[ParseEvent]:
        self._text += text
        while True:
            before = (self._state, len(self._text))
            yield from self._step()
            if not self._text or (self._state, len(self._text)) == before:
                return

    def finish(self, *, is_cut: bool) -> Iterator[ParseEvent]:
        """The turn is over: held text comes out, an open call does not count."""
        text, self._text = self._text, ""
        match self._state:
            case State.TEXT:
                yield from self._tell_text(text)
                if self._space and not self.num_calls:
                    yield Text(self._space)
            case State.REASONING if text:
                yield Reasoning(text)
            case State.RAW_OBJECT if text:
                yield Text(text)
            case State.BEFORE | State.OBJECT if not self._is_closed:
                reason = "the answer was cut" if is_cut else "the turn ended inside the call"
                yield CallInvalid(self._raw + text, reason, is_cut)
            case State.OBJECT | State.AFTER:
                yield CallEnd()
        self._state = State.TEXT

    def reject(self, reason: str) -> None:
        """The call at hand is none: all of it becomes text, up to the end of its JSON."""
        self._rejected = reason

    def _step(self) -> Iterator[ParseEvent]:
        match self._state:
            case State.TEXT:
                yield from self._in_text()
            case State.REASONING:
                yield from self._in_reasoning()
            case State.BEFORE:
                yield from self._before_object()
            case State.OBJECT:
                yield from self._in_object()
            case State.RAW_OBJECT:
                yield from self._in_raw_object()
            case State.AFTER:
                yield from self._after_object()

    def _in_text(self) -> Iterator[ParseEvent]:
        markers = [m for m in (self._markers.call_open, self._markers.reasoning_open) if m]
        found = [(self._text.index(marker), marker) for marker in markers if marker in self._text]
        if not found:
            num_held = max((longest_suffix_that_begins(self._text, marker) for marker in markers), default=0)
            yield from self._tell_text(self._take(len(self._text) - num_held))
            return
        index, marker = min(found)
        yield from self._tell_text(self._take(index))
        if self._fences.is_inside:
            yield from self._tell_text(self._take(len(marker)))
        elif marker == self._markers.reasoning_open:
            self._take(len(marker))
            self._space = ""
            self._state = State.REASONING
        else:
            yield from self._begin_call(self._take(len(marker)))

    def _in_reasoning(self) -> Iterator[ParseEvent]:
        closing = self._markers.reasoning_close
        index = self._text.find(closing)
        if index >= 0:
            text = self._take(index)
            self._take(len(closing))
            self._state = State.TEXT
            self._space = ""
        else:
            text = self._take(len(self._text) - longest_suffix_that_begins(self._text, closing))
        if text:
            yield Reasoning(text)

    def _before_object(self) -> Iterator[ParseEvent]:
        num_space = len(self._text) - len(self._text.lstrip())
        self._raw += self._take(num_space)
        if not self._text:
            return
        if self._text[0] != "{":
            yield from self._give_up("no JSON object follows the marker")
            return
        self._object = CallObject()
        self._state = State.OBJECT

    def _in_object(self) -> Iterator[ParseEvent]:
        call, start = self._object, self._object.num_consumed
        events = call.feed(self._text)
        self._raw += self._take(call.num_consumed - start)
        for event in events:
            yield event
            if self._rejected is not None:
                yield from self._give_up(self._rejected)
                return
            self._is_closed = self._is_closed or isinstance(event, ArgumentsEnd)
        if not self._is_closed:
            if call.error is not None:
                yield from self._give_up(call.error)
        elif call.is_complete:
            self._state = State.AFTER
        elif call.is_malformed:
            yield from self._end_call()

    def _in_raw_object(self) -> Iterator[ParseEvent]:
        start = self._object.num_consumed
        self._object.feed(self._text)
        yield from self._tell_text(self._take(self._object.num_consumed - start))
        if self._object.is_complete or self._object.is_malformed:
            self._state = State.TEXT

    def _after_object(self) -> Iterator[ParseEvent]:
        closing = self._markers.call_close
        stripped = self._text.lstrip()
        if stripped.startswith(closing):
            self._take(len(self._text) - len(stripped) + len(closing))
            yield from self._end_call()
        elif not closing.startswith(stripped):
            yield from self._end_call()

    def _begin_call(self, marker: str) -> Iterator[ParseEvent]:
        self._raw = (self._space or "") + marker
        self._space = None
        self._is_closed = False
        self._state = State.BEFORE
        yield CallBegin()

    def _end_call(self) -> Iterator[ParseEvent]:
        self._state = State.TEXT
        self._space = ""
        self.num_calls += 1
        yield CallEnd()

    def _give_up(self, reason: str) -> Iterator[ParseEvent]:
        raw, self._raw = self._raw, ""
        has_ended = self._object.is_complete or self._object.is_malformed
        is_object_open = self._state is State.OBJECT and not has_ended
        self._state = State.RAW_OBJECT if is_object_open else State.TEXT
        self._rejected = None
        self._fences.feed(raw)
        yield CallInvalid(raw, reason)

    def _tell_text(self, text: str) -> Iterator[ParseEvent]:
        self._fences.feed(text)
        if self._space is not None:
            text = self._space + text
            self._space = text
            if not text.strip():
                return
            self._space = None
        if text:
            yield Text(text)

    def _take(self, num_characters: int) -> str:
        taken, self._text = self._text[:num_characters], self._text[num_characters:]
        return taken
