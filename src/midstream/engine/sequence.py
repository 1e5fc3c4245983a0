"""Owns what is known of one sequence. Decides nothing: the scheduler and the loop move it on.

The counter rule: `num_pending = num_tokens - num_computed_tokens` is the sequence's work, whatever it consists of:

    token_ids   [ prompt ............ | generated, forced, injected ... ]
                0                     num_prompt_tokens                 num_tokens
    KV present  [ ......................... )
                                            num_computed_tokens
"""

from collections import deque
from enum import Enum
from typing import Protocol

from midstream.engine.detokenizer import Detokenizer
from midstream.engine.stop import StopMatcher
from midstream.engine.watch import TokenWatch
from midstream.messages import AddRequest, Inject, TokenCounts

MAX_DECODE_TOKENS = 32
"""A sequence that has begun to answer decodes with up to so many tokens to compute; more is a prefill."""


class Drafter(Protocol):
    """Guesses a sequence's next tokens, and is told how many were right."""

    def propose(self, seq: "Sequence", num_rows: int) -> tuple[int, ...]:
        """Tokens that may follow all of `seq`, in a step of `num_rows` sequences."""

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """The last guess has been checked."""


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    FINISHED = "finished"


class Sequence:
    """One request's tokens and counters. Owned by the engine's loop thread."""

    def __init__(
        self, request: AddRequest, watch: TokenWatch, detokenizer: Detokenizer, drafter: Drafter | None = None
    ) -> None:
        self.request_id = request.request_id
        self.sampling = request.sampling
        self.salt = request.salt
        self.status = SequenceStatus.WAITING
        self.watch = watch
        self.detokenizer = detokenizer
        self.drafter = drafter
        self.stop = StopMatcher(request.sampling.stop)
        self.token_ids = list(request.token_ids)
        self.num_prompt_tokens = len(request.token_ids)
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_generated = 0
        self.num_injected = 0
        self.num_cached = 0
        self.num_forwarded = 0
        self.num_passes = 0
        self.injects: deque[Inject] = deque()
        """Results that wait for a place where they may be put in."""
        self.num_awaited = 0
        """Calls of earlier turns whose results have not been put in."""
        self.turn_start_passes = 0
        self.turn_start_generated = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens that have no KV yet. Never 0 while the sequence is waiting or running."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """True while a prompt is computed, or later something long; a few tokens (forced ones) are part of decoding."""
        return self.num_generated == 0 or self.num_pending > MAX_DECODE_TOKENS

    @property
    def awaits_results(self) -> bool:
        """Calls have been made whose results are not in."""
        return self.num_awaited + len(self.watch.server_calls) > 0

    @property
    def is_at_boundary(self) -> bool:
        """A line or a sentence has ended, and no text is held: half a character, or what may be a stop string."""
        return self.watch.is_at_boundary and self.detokenizer.is_empty and self.stop.is_empty

    @property
    def is_at_result(self) -> bool:
        """Nothing has been written since a result was put in."""
        return self.num_injected > 0 and self.num_generated == self.turn_start_generated

    @property
    def counts(self) -> TokenCounts:
        return TokenCounts(
            prompt=self.num_prompt_tokens,
            generated=self.num_generated,
            injected=self.num_injected,
            cached=self.num_cached,
            computed=self.num_forwarded,
            passes=self.num_passes,
        )

    def propose_drafts(self, num_rows: int) -> tuple[int, ...]:
        """Guesses at the tokens that will follow, in a step of `num_rows` sequences."""
        return () if self.drafter is None else self.drafter.propose(self, num_rows)

    def append_generated(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.num_generated += 1

    def inject(self, token_ids: list[int]) -> None:
        """Append a tool's rendered results and begin the next turn."""
        self.token_ids.extend(token_ids)
        self.num_injected += len(token_ids)
        self.turn_start_passes = self.num_passes
        self.turn_start_generated = self.num_generated
