"""Owns how much is measured: in full, and quickly. Measures nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int = 4
    """Alternations A B A B with Q4_0."""
    type_rounds: int = 3
    """The same with Q4_1 and Q8_0."""
    transformers_rounds: int = 2
    tokens: int = 192
    crowd_tokens: int = 128
    """A stream's length where 64 run at once."""
    ttft_requests: int = 15
    tool_calls: int = 60
    repeats: int = 5
    """Runs of what one server start gives several of."""
    idle_s: float = 60.0
    left_out: tuple[str, ...] = ()
    """Stages."""
    limit_s: float = 22 * 60.0
    """No stage begins later."""


QUICK = Plan(
    rounds=1,
    type_rounds=1,
    tokens=96,
    crowd_tokens=96,
    ttft_requests=7,
    tool_calls=20,
    repeats=1,
    idle_s=5.0,
    left_out=("Q8_0", "transformers"),
    limit_s=240.0,
)
