"""Owns the state machine for a turn that is one JSON array of calls (`tool_choice: required` without markers)."""

from collections.abc import Iterator

from midstream.routing.watching.events import ParseEvent
from midstream.routing.watching.parser import CallParser


class ArrayParser(CallParser):
    """`[{"name": "x", "parameters": {…}}, …]`, reasoning before it allowed; a turn that begins otherwise is text."""

    _is_over = False

    def _in_text(self) -> Iterator[ParseEvent]:
        stripped = self._text.lstrip()
        reasoning = self._markers.reasoning_open
        may_reason = reasoning is not None and (stripped.startswith(reasoning) or reasoning.startswith(stripped))
        if self._is_over or may_reason or not stripped:
            yield from super()._in_text()
        elif stripped.startswith("["):
            yield from self._begin_call(self._take(len(self._text) - len(stripped) + 1))
        else:
            self._is_over = True
            yield from super()._in_text()

    def _give_up(self, reason: str) -> Iterator[ParseEvent]:
        self._is_over = True
        yield from super()._give_up(reason)

    def _after_object(self) -> Iterator[ParseEvent]:
        stripped = self._text.lstrip()
        if not stripped:
            return
        self._take(len(self._text) - len(stripped) + (stripped[0] in ",]"))
        yield from self._end_call()
        if stripped[0] == ",":
            yield from self._begin_call("")
        else:
            self._is_over = True
