"""Owns the engine's view of whoever watches its tokens: a Protocol. Knows no dialect and no tool."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from midstream.messages import Mark, TextDelta, ToolPlan, WatchEvent

Bitmask = npt.NDArray[np.int32]


class TokenWatch(Protocol):
    """Sees every completion token of one sequence, and may narrow or force the next one."""

    @property
    def num_calls(self) -> int:
        """Calls routed so far, those of earlier turns included."""

    @property
    def is_in_call(self) -> bool:
        """True from where a call's tool is known to the call's end: arguments come, often copied from the prompt."""

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Tokens that may never be sampled (frames that only the server may write)."""

    def feed(self, token_id: int, text: str, mark: Mark) -> list[WatchEvent]:
        """Take a token that was just appended and the text that it completes (may be empty, may lag)."""

    def end_turn(self, text: str, mark: Mark) -> list[WatchEvent]:
        """The model ended its turn by itself; `text` is the last that was held back."""

    def cut(self, text: str, mark: Mark) -> list[WatchEvent]:
        """The turn was cut: length, a stop string, an abort."""

    @property
    def server_calls(self) -> Sequence[str]:
        """The tools of this turn's closed calls whose results the server brings."""

    @property
    def has_client_calls(self) -> bool:
        """A call of this turn is the client's to answer: the turn is not ours to go on with."""

    @property
    def is_at_boundary(self) -> bool:
        """True where something may be put in: after a line or a sentence, outside calls, code and reasoning."""

    def forced_tokens(self) -> list[int]:
        """The only tokens that can come next, if the grammar knows them: appended without sampling."""

    def expected_text(self) -> str:
        """What comes next if the model goes on as it has begun (a call's marker, a value's quote); often empty."""

    def num_allowed(self, token_ids: list[int]) -> int:
        """How many of `token_ids`, in order, the grammar lets follow."""

    def fill_mask(self, bitmask: Bitmask) -> bool:
        """Overwrite `bitmask` ([ceil(V / 32)] int32, bit set = allowed) with the allowed next tokens.

        Returns False, writing nothing, where every token is allowed.
        """


WatchFactory = Callable[[ToolPlan | None, int], TokenWatch]
"""Builds the watch of a turn from its plan and the number of calls made in earlier turns."""


class PlainWatch:
    """The watch of a request without tools: all text is text."""

    num_calls = 0
    server_calls: Sequence[str] = ()
    has_client_calls = False
    is_in_call = False
    banned_token_ids: tuple[int, ...] = ()

    def feed(self, token_id: int, text: str, mark: Mark) -> list[WatchEvent]:
        return [TextDelta(text)] if text else []

    def end_turn(self, text: str, mark: Mark) -> list[WatchEvent]:
        return [TextDelta(text)] if text else []

    def cut(self, text: str, mark: Mark) -> list[WatchEvent]:
        return [TextDelta(text)] if text else []

    @property
    def is_at_boundary(self) -> bool:
        return False

    def forced_tokens(self) -> list[int]:
        return []

    def expected_text(self) -> str:
        return ""

    def num_allowed(self, token_ids: list[int]) -> int:
        return len(token_ids)

    def fill_mask(self, bitmask: Bitmask) -> bool:
        return False


def plain_watch(plan: ToolPlan | None, num_earlier_calls: int) -> TokenWatch:
    """The factory for an engine that serves no tools."""
    return PlainWatch()
