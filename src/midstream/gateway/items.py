"""Owns what a choice tells its client, whatever the wire. Holds no state."""

from dataclasses import dataclass

from midstream.messages import FinishReason, ReasoningDelta, TextDelta, TokenCounts
from midstream.routing.dispatching.status import CallStatus


@dataclass(frozen=True)
class ClientCall:
    """A client's call has its name: `index` counts the choice's client calls from 0."""

    index: int
    name: str
    call_id: str | None = None
    """The model's own id for it."""


@dataclass(frozen=True)
class ClientArguments:
    index: int
    text: str


@dataclass(frozen=True)
class ClientCallFailed:
    """A client call that was already shown turned out to be invalid; its text comes as content."""

    index: int
    reason: str


@dataclass(frozen=True)
class Ended:
    reason: FinishReason
    stop_reason: str | int | None
    counts: TokenCounts


Item = TextDelta | ReasoningDelta | ClientCall | ClientArguments | ClientCallFailed | CallStatus | Ended
