"""Owns the reading of one call written as a name, a fixed text and a JSON object. Knows no markers around it."""

import re

from midstream.routing.watching.arguments_object import ArgumentsObject
from midstream.routing.watching.events import NameEnd, NamePart, ParseEvent

MAX_HEAD = 512
"""Characters before the arguments; more are no call."""


class NamedCall:
    """Feeds on `get_weather[ARGS]{"city": "Bern"}`: a head that `head` matches whole, then the arguments.

    `head` has a group `name`, and a group `id` where the model gives its calls ids: the name is told with it.
    `name` matches the beginning of a head that is certainly the name's.
    """

    def __init__(self, head: re.Pattern[str], *, name: re.Pattern[str], lead: str = "") -> None:
        """`lead` may stand before the name; `head` has to allow for it."""
        self.error: str | None = None
        self.tells_parts = False
        self._pattern = head
        self._name = name
        self._lead = lead
        self._has_id = "id" in head.groupindex
        self._head = ""
        self._is_named = False
        self._arguments: ArgumentsObject | None = None

    @property
    def is_complete(self) -> bool:
        return self._arguments is not None and self._arguments.is_complete

    @property
    def is_malformed(self) -> bool:
        return self.error is not None and not (self._arguments and not self._arguments.is_malformed)

    @property
    def num_consumed(self) -> int:
        return len(self._head) + (self._arguments.num_consumed if self._arguments else 0)

    def feed(self, text: str) -> list[ParseEvent]:
        """Consume what belongs to the call. O(len(text)), and O(head) while the head comes."""
        events: list[ParseEvent] = []
        if self._arguments is None:
            events, text = self._in_head(text)
        if self._arguments is not None:
            self._arguments.tells_parts = self.tells_parts
            events += self._arguments.feed(text)
            if self._arguments.is_malformed and not self.error:
                self.error = "its JSON is malformed"
        return events

    def _in_head(self, text: str) -> tuple[list[ParseEvent], str]:
        if self.error is not None:
            return [], text
        text, later = text[: MAX_HEAD + 1 - len(self._head)], text[MAX_HEAD + 1 - len(self._head) :]
        before, brace, after = text.partition("{")
        self._head += before
        if brace:
            found = self._pattern.fullmatch(self._head)
            if found is None:
                self.error = "no name and arguments follow the marker"
                return [], ""
            self._arguments = ArgumentsObject()
            call_id = found["id"] if self._has_id else None
            return [] if self._is_named else [NameEnd(found["name"], call_id)], brace + after + later
        if len(self._head) > MAX_HEAD:
            self.error = "its name is too long"
            return [], ""
        return self._name_events(), ""

    def _name_events(self) -> list[ParseEvent]:
        if self._is_named or self._lead.startswith(self._head):
            return []
        head = self._head.removeprefix(self._lead).lstrip()
        found = self._name.match(head)
        if found is None:
            return []
        if len(found[0]) == len(head) or self._has_id:
            return [NamePart(found[0])]
        self._is_named = True
        return [NameEnd(found[0])]
