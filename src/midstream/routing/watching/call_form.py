"""Owns what stands around calls in a dialect's text, and what a reader of one call offers. Holds no state."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from midstream.routing.watching.events import ParseEvent


class CallReader(Protocol):
    """Reads one call, from where its syntax begins to where it ends, in any pieces."""

    error: str | None
    """Why what was read is no call, once it is none."""
    tells_parts: bool
    """Whoever reads on wants a text argument as it grows."""

    @property
    def is_complete(self) -> bool:
        """The call's syntax has ended."""

    @property
    def is_malformed(self) -> bool:
        """What came can be no part of the call; it is not consumed."""

    @property
    def num_consumed(self) -> int:
        """Characters that are settled as the call's, of all that was fed; others may wait for more to come."""

    def feed(self, text: str) -> list[ParseEvent]:
        """Go on with what comes next. A call ends with `ArgumentsEnd`, or has an `error`."""


@dataclass(frozen=True)
class CallForm:
    """A section of calls, white space allowed between its parts:

    `opening begin (call_open CALL call_close) (separator call_open CALL call_close)* end`.
    """

    make_reader: Callable[[], CallReader]
    openings: tuple[str, ...] = ()
    """Each of them opens a section wherever it stands in the text. A grammar writes the first."""
    starts: tuple[str, ...] = ()
    """A turn that begins with one of them is a section without an opening; it belongs to what follows."""
    begin: str = ""
    call_open: str = ""
    call_close: str = ""
    """May be missing: the next call, the end or other text then ends the call."""
    separator: str = ""
    end: str = ""
    """May be missing at the turn's end."""
    repeats: bool = False
    """Calls follow each other with nothing but white space between them."""

    @property
    def has_many(self) -> bool:
        """A section may hold several calls."""
        return bool(self.separator or self.call_open or self.repeats)
