"""Owns what a dialect declares. Holds no state."""

from collections.abc import Callable
from dataclasses import dataclass

from midstream.routing.watching.parser import CallParser, Markers


@dataclass(frozen=True)
class Dialect:
    """How one family of models writes calls.

    A call that the grammar constrains reads, to the byte:
    `call_open + before_name + NAME + before_arguments + ARGUMENTS + after_arguments`;
    a turn that has to be made of calls: `before_first_call + CALL (+ between_calls + CALL)* + after_last_call`.
    """

    name: str
    make_parser: Callable[[Markers], CallParser]
    call_open: str | None
    call_close: str
    before_name: str
    before_arguments: str
    after_arguments: str
    between_calls: str
    item_separator: str
    key_separator: str
    before_first_call: str = ""
    after_last_call: str = ""
    result_frames: tuple[str, ...] = ()
    """Texts that only the server may write; sampling is kept from those that are single tokens."""

    def markers(self, reasoning: tuple[str, str] | None) -> Markers:
        opening, closing = reasoning or (None, "")
        return Markers(self.call_open, self.call_close, opening, closing)
