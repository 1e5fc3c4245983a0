"""Owns the states of a call and how a change of state is told. Changes no state."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class CallState(StrEnum):
    """ROUTED → READY → RUNNING → (PROGRESS)* → DONE | FAILED | TIMED_OUT | CANCELLED → INJECTED; or ABANDONED."""

    ROUTED = "routed"
    READY = "ready"
    RUNNING = "running"
    PROGRESS = "progress"
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    INJECTED = "injected"


OUTCOMES = frozenset({CallState.DONE, CallState.FAILED, CallState.TIMED_OUT, CallState.CANCELLED, CallState.ABANDONED})


@dataclass(frozen=True)
class CallStatus:
    """One change in a server call's life, for the client."""

    call_id: str
    name: str
    state: CallState
    description: str
    arguments: dict[str, Any] | None = None
    result: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class CallResult:
    """What the model is told of a call that has ended."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    text: str
