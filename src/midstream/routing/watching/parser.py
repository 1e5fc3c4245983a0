"""Owns the state machine that finds calls and reasoning in a turn's text. Pure: no tokens, no tools, no clock.

    TEXT ──opening──▶ SECTION ──its end──▶ TEXT
     │ ▲
     ▼ └── reasoning's end
    REASONING

Any way of cutting the text gives the same events, but for how texts are cut.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from midstream.routing.watching.call_form import CallForm
from midstream.routing.watching.call_section import CallSection
from midstream.routing.watching.events import CallEnd, CallInvalid, ParseEvent, Reasoning, Text
from midstream.routing.watching.fences import FenceTracker


@dataclass(frozen=True)
class Markers:
    """What stands around calls and around reasoning in a dialect's text."""

    calls: CallForm | None
    """None: what looks like a call is text."""
    reasoning: tuple[str, str] | None = None
    silent: tuple[str, ...] = ()
    """Frames of the dialect's own that say nothing to a reader."""
    begins_in_reasoning: bool = False
    """The prompt has opened it already."""

    @cached_property
    def openings(self) -> tuple[str, ...]:
        return self.calls.openings if self.calls else ()

    @cached_property
    def all(self) -> tuple[str, ...]:
        """Every marker that may stand in text, longest first."""
        reasoning = self.reasoning[:1] if self.reasoning else ()
        return tuple(sorted((*self.openings, *reasoning, *self.silent), key=len, reverse=True))

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        return re.compile("|".join(map(re.escape, self.all))) if self.all else None


class State(Enum):
    TEXT = auto()
    REASONING = auto()
    SECTION = auto()


_BOUNDARY = re.compile(r"""(?:\n|(?:(?<=[a-zß-ÿ]{2})[.…]|[!?])["')\]*_]*\s?)\Z""")
_TAIL = 8


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
        self._state = State.REASONING if markers.begins_in_reasoning and markers.reasoning else State.TEXT
        self._text = ""
        self._fences = FenceTracker()
        self._section: CallSection | None = None
        self._opening = ""
        self._is_at_start = True
        self._tail = ""
        # Whitespace at the turn's start, after reasoning and after a call waits: it is nobody's when a call or the
        # end comes next.
        self._space: str | None = ""
        self.num_calls = 0
        """Calls that have ended, whole."""
        self.num_sections = 0
        """Sections of calls that have ended, in whatever way."""

    @property
    def is_in_section(self) -> bool:
        """True from an opening to the end of the last call's section."""
        return self._section is not None and self._section.is_in_call

    @property
    def opening(self) -> str | None:
        """What has opened the section at hand: a marker, or "" at a turn's start; None outside of sections."""
        return self._opening if self.is_in_section else None

    @property
    def is_at_boundary(self) -> bool:
        """True after a line or a sentence, where no code fence is open and nothing has begun.

        Not right after a call: another one may be about to follow.
        """
        return (
            self._state is State.TEXT
            and not self._text
            and not self._fences.is_inside
            and _BOUNDARY.search(self._tail) is not None
        )

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
        if self._state is not State.TEXT or self._fences.is_inside:
            return ""
        for opening in self._markers.openings:
            num_begun = longest_suffix_that_begins(self._text, opening)
            if num_begun:
                return opening[num_begun:]
        return ""

    def feed(self, text: str) -> Iterator[ParseEvent]:
        self._text += text
        while True:
            before = (self._state, len(self._text))
            yield from self._step()
            if not self._text or (self._state, len(self._text)) == before:
                return

    def finish(self, *, is_cut: bool) -> Iterator[ParseEvent]:
        """The turn is over: held text comes out, an open call does not count."""
        while self._state is State.TEXT and self._marker_in_text(is_final=True):
            yield from self._in_text(is_final=True)
            yield from self.feed("")
        match self._state:
            case State.TEXT:
                yield from self._tell_text(self._take(len(self._text)))
                if self._space and not self.num_calls:
                    yield Text(self._space)
            case State.REASONING if self._text:
                yield Reasoning(self._take(len(self._text)))
            case State.SECTION:
                assert self._section is not None
                yield from self._section.finish(is_cut=is_cut)
        self._section = None
        self._state = State.TEXT

    def tell_parts(self) -> None:
        """Tell the text arguments of the call at hand as they grow."""
        if self._section is not None:
            self._section.tell_parts()

    def reject(self, reason: str) -> None:
        """The call at hand is none: all of it becomes text, up to the end of its syntax."""
        if self._section is not None:
            self._section.reject(reason)

    def _step(self) -> Iterator[ParseEvent]:
        match self._state:
            case State.TEXT:
                yield from self._in_text()
            case State.REASONING:
                yield from self._in_reasoning()
            case State.SECTION:
                yield from self._in_section()

    def _marker_in_text(self, *, is_final: bool = False) -> re.Match[str] | None:
        """The first marker that has come whole and cannot become a longer one."""
        pattern = self._markers.pattern
        found = pattern.search(self._text) if pattern else None
        if found is None or is_final:
            return found
        tail = self._text[found.start() :]
        return None if any(len(m) > len(tail) and m.startswith(tail) for m in self._markers.all) else found

    def _in_text(self, *, is_final: bool = False) -> Iterator[ParseEvent]:
        if self._is_at_start and self._markers.calls is not None:
            stripped = self._text.lstrip()
            starts = self._markers.calls.starts
            if stripped.startswith(starts) and starts:
                yield from self._begin_section("", self._take(len(self._text) - len(stripped)))
                return
            if stripped and not is_final and any(start.startswith(stripped) for start in starts):
                return
        found = self._marker_in_text(is_final=is_final)
        if found is None:
            num_held = max((longest_suffix_that_begins(self._text, m) for m in self._markers.all), default=0)
            held = self._markers.pattern.search(self._text) if self._markers.pattern else None
            if held is not None:  # a marker that may still become a longer one
                num_held = max(num_held, len(self._text) - held.start())
            yield from self._tell_text(self._take(len(self._text) - num_held))
            return
        yield from self._tell_text(self._take(found.start()))
        marker = self._take(len(found[0]))
        if self._fences.is_inside:
            yield from self._tell_text(marker)
        elif marker in self._markers.openings:
            yield from self._begin_section(marker, marker)
        else:
            self._space = ""
            if self._markers.reasoning and marker == self._markers.reasoning[0]:
                self._state = State.REASONING

    def _in_reasoning(self) -> Iterator[ParseEvent]:
        assert self._markers.reasoning is not None
        closing = self._markers.reasoning[1]
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

    def _begin_section(self, opening: str, raw: str) -> Iterator[ParseEvent]:
        assert self._markers.calls is not None
        self._opening = opening
        self._section = CallSection(self._markers.calls, (self._space or "") + raw)
        self._space = None
        self._is_at_start = False
        self._state = State.SECTION
        yield from self._section.begin()

    def _in_section(self) -> Iterator[ParseEvent]:
        section = self._section
        assert section is not None
        for event in section.feed(self._take(len(self._text))):
            match event:
                case Text(text):
                    yield from self._tell_text(text)
                    continue
                case CallInvalid(raw_text):
                    self._fences.feed(raw_text)
                    self._space = None
                case CallEnd():
                    self.num_calls += 1
                    self._space = ""
                    self._tail = ""
            yield event
        if section.is_over:
            self._text = section.rest + self._text
            self.num_sections += 1
            self._section = None
            self._state = State.TEXT

    def _tell_text(self, text: str) -> Iterator[ParseEvent]:
        self._fences.feed(text)
        if self._space is not None:
            text = self._space + text
            self._space = text
            if not text.strip():
                return
            self._space = None
        if text:
            self._is_at_start = False
            self._tail = (self._tail + text)[-_TAIL:]
            yield Text(text)

    def _take(self, num_characters: int) -> str:
        taken, self._text = self._text[:num_characters], self._text[num_characters:]
        return taken
