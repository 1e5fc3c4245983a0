"""Owns the state machine of one section of calls, from behind its opening to its end. Knows no other text.

BEGIN ──begin──▶ CALL_OPEN ──call_open──▶ CALL ───────▶ CALL_CLOSE ──▶ BETWEEN ──end, other text──▶ OVER
                    ▲                       │ no call     ▲ its syntax    │                          ▲
                    │                       ▼             │ is whole      │                          │
                    │                      RAW ───────────┴───────────────┼──────it is not───────────┘
                    └─────────────────────────────────separator───────────┘

A call that is none is text, with what closes it; those that follow it are read as any other.
"""

from collections.abc import Iterator
from enum import Enum, auto

from midstream.routing.watching.call_form import CallForm
from midstream.routing.watching.events import ArgumentsEnd, CallBegin, CallEnd, CallInvalid, ParseEvent, Text


class State(Enum):
    BEGIN = auto()
    CALL_OPEN = auto()
    CALL = auto()
    CALL_CLOSE = auto()
    BETWEEN = auto()
    RAW = auto()
    OVER = auto()


class CallSection:
    """Reads one section. `rest` is the text that came after it."""

    def __init__(self, form: CallForm, raw: str) -> None:
        """`raw` is the text that the section has begun with: its opening, and the white space before it."""
        self._form = form
        self._state = State.BEGIN
        self._raw = raw
        self._reader = form.make_reader()
        self._num_ahead = 0
        """Characters of `rest` that the reader has seen and not settled."""
        self._has_closed = False
        self._rejected: str | None = None
        self._is_text = False
        """The call at hand is none."""
        self.rest = ""

    @property
    def is_over(self) -> bool:
        return self._state is State.OVER

    @property
    def is_in_call(self) -> bool:
        """False where what began as a call has turned out to be text."""
        return not (self._is_text or self.is_over)

    def begin(self) -> Iterator[ParseEvent]:
        yield CallBegin()

    def feed(self, text: str) -> Iterator[ParseEvent]:
        self.rest += text
        while not self.is_over:
            before = (self._state, len(self.rest))
            yield from self._step()
            if (self._state, len(self.rest)) == before:
                return

    def finish(self, *, is_cut: bool) -> Iterator[ParseEvent]:
        """The turn is over: a call that is not whole is none."""
        match self._state:
            case _ if self._is_text:
                if self.rest:
                    yield Text(self.rest)
            case State.CALL | State.CALL_CLOSE if self._has_closed:
                yield CallEnd()
            case State.BEGIN | State.CALL_OPEN | State.CALL:
                reason = "the answer was cut" if is_cut else "the turn ended inside the call"
                yield CallInvalid(self._raw + self.rest, reason, is_cut)

    def tell_parts(self) -> None:
        """Tell the text arguments of the call at hand as they grow."""
        self._reader.tells_parts = True

    def reject(self, reason: str) -> None:
        """The call at hand is none: all of it becomes text, up to the end of its syntax."""
        self._rejected = reason

    def _step(self) -> Iterator[ParseEvent]:
        match self._state:
            case State.BEGIN:
                yield from self._expect(self._form.begin, State.CALL_OPEN)
            case State.CALL_OPEN:
                yield from self._expect(self._form.call_open, State.CALL)
            case State.CALL:
                yield from self._in_call()
            case State.CALL_CLOSE:
                yield from self._after_call()
            case State.BETWEEN:
                yield from self._between_calls()
            case State.RAW:
                yield from self._in_raw()

    def _expect(self, text: str, next_state: State) -> Iterator[ParseEvent]:
        stripped = self.rest.lstrip()
        if stripped.startswith(text):
            self._raw += self._take(len(self.rest) - len(stripped) + len(text))
            self._state = next_state
        elif not text.startswith(stripped):
            yield from self._give_up("no call follows the marker", State.OVER)

    def _in_call(self) -> Iterator[ParseEvent]:
        reader = self._reader
        events, taken = self._read()
        self._raw += taken
        for event in events:
            yield event
            if self._rejected is not None:
                yield from self._give_up(self._rejected, State.RAW)
                return
            self._has_closed = self._has_closed or isinstance(event, ArgumentsEnd)
        if not self._has_closed:
            if reader.error is not None:
                yield from self._give_up(reader.error, State.RAW)
        elif reader.is_complete:
            self._state = State.CALL_CLOSE
        elif reader.is_malformed:
            yield from self._end_call()

    def _after_call(self) -> Iterator[ParseEvent]:
        closing = self._form.call_close
        stripped = self.rest.lstrip()
        if stripped.startswith(closing):
            # Without a closing, the white space belongs to what follows.
            yield from self._pass(len(self.rest) - len(stripped) + len(closing) if closing else 0)
            yield from self._end_call()
        elif not closing.startswith(stripped):
            yield from self._end_call()

    def _between_calls(self) -> Iterator[ParseEvent]:
        form, stripped = self._form, self.rest.lstrip()
        if not (form.has_many or form.end):
            self._state = State.OVER
            return
        more = form.separator or form.call_open
        if form.end and stripped.startswith(form.end):
            yield from self._pass(len(self.rest) - len(stripped) + len(form.end))
            self._state = State.OVER
        elif more and stripped.startswith(more):
            yield from self._begin_next(len(self.rest) - len(stripped) + len(form.separator))
        elif any(text.startswith(stripped) for text in (more, form.end) if text) or not stripped:
            return
        elif form.repeats:
            yield from self._begin_next(len(self.rest) - len(stripped))
        else:
            self._state = State.OVER

    def _in_raw(self) -> Iterator[ParseEvent]:
        reader = self._reader
        if not (reader.is_complete or reader.is_malformed):
            _, taken = self._read()
            if taken:
                yield Text(taken)
        if reader.is_complete:
            self._state = State.CALL_CLOSE
        elif reader.is_malformed:
            self._state = State.OVER

    def _read(self) -> tuple[list[ParseEvent], str]:
        """Let the reader go on: what it tells, and the text that it has settled. It sees each character once."""
        start = self._reader.num_consumed
        events = self._reader.feed(self.rest[self._num_ahead :])
        taken = self._take(self._reader.num_consumed - start)
        self._num_ahead = len(self.rest)
        return events, taken

    def _begin_next(self, num_characters: int) -> Iterator[ParseEvent]:
        self._raw = self._take(num_characters)
        self._reader = self._form.make_reader()
        self._num_ahead = 0
        self._has_closed = self._is_text = False
        self._state = State.CALL_OPEN
        yield CallBegin()

    def _end_call(self) -> Iterator[ParseEvent]:
        self._state = State.BETWEEN
        if not self._is_text:
            yield CallEnd()

    def _give_up(self, reason: str, next_state: State) -> Iterator[ParseEvent]:
        raw, self._raw = self._raw, ""
        self._rejected = None
        self._is_text = True
        self._state = next_state
        yield CallInvalid(raw, reason)

    def _pass(self, num_characters: int) -> Iterator[ParseEvent]:
        """Go over what closes a call or the section: with a call that is none, it is text."""
        passed = self._take(num_characters)
        if self._is_text and passed:
            yield Text(passed)

    def _take(self, num_characters: int) -> str:
        taken, self.rest = self.rest[:num_characters], self.rest[num_characters:]
        return taken
