"""Owns walks through a turn that only take tokens which the grammar allows. Runs no engine."""

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from midstream.engine.detokenizer import Detokenizer
from midstream.engine.stop import StopMatcher
from midstream.messages import FinishReason, Mark, ToolPlan, WatchEvent
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.watch import Watches
from tests.routing.watching.reading import Reading

MAX_TOKENS = 600
MAX_TOKEN_BYTES = 48

Choose = Callable[["Walk", npt.NDArray[np.bool_] | None], int | None]
"""The next token, given which are allowed (None: every one); None to stop here."""


class Walk:
    """A turn of `plan`, token by token."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        watches: Watches,
        plan: ToolPlan,
        *,
        stop: tuple[str, ...] = (),
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self.tokenizer = tokenizer
        self.token_bytes = _token_bytes(tokenizer, shown)
        self.shown = shown
        self.watch = watches.make(plan, 0)
        self.token_ids: list[int] = []
        self.num_forced = 0
        self.events: list[WatchEvent] = []
        self.has_ended = False
        self._plan = plan
        self._detokenizer = Detokenizer(self.token_bytes)
        self._stop = StopMatcher(stop)

    @property
    def text(self) -> str:
        return self.tokenizer.decode(self.token_ids)

    @property
    def written(self) -> bytes:
        return b"".join(self.token_bytes[token_id] for token_id in self.token_ids)

    @property
    def reading(self) -> Reading:
        return Reading(self.events, FinishReason.STOP, bool(self.watch.server_calls), self._plan)

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """Which tokens the mask allows next; None where it allows all."""
        bitmask = np.zeros(-(-self.tokenizer.vocab_size // 32), dtype=np.int32)
        if not self.watch.fill_mask(bitmask):
            return None
        bits = np.unpackbits(bitmask.view(np.uint8), bitorder="little")
        return bits[: self.tokenizer.vocab_size].astype(np.bool_)

    def allows(self, piece: str) -> bool:
        """Whether the one token `piece` may come next."""
        allowed = self.allowed()
        return allowed is None or bool(allowed[self.token_bytes.index(piece.encode())])

    def allows_end(self) -> bool:
        allowed = self.allowed()
        return allowed is None or bool(allowed[self.tokenizer.eos_token_ids[0]])

    def take(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        if token_id in self.tokenizer.eos_token_ids:
            self.events += self.watch.end_turn(self._stop.finish() + self._detokenizer.finish(), self._mark())
            self.has_ended = True
        else:
            found = self._stop.feed(self._detokenizer.feed(token_id))
            assert found.matched is None, "walks do not go over a stop string"
            self.events += self.watch.feed(token_id, found.text, self._mark())

    def take_forced(self) -> None:
        while not self.has_ended and (forced := self.watch.forced_tokens()):
            for token_id in forced:
                self.num_forced += 1
                self.take(token_id)
                if self.has_ended:
                    return

    def go(self, choose: Choose) -> "Walk":
        """Until the end, or until `choose` stops."""
        while not self.has_ended:
            self.take_forced()
            token_id = None if self.has_ended else choose(self, self.allowed())
            if token_id is None:
                break
            self.take(token_id)
            assert len(self.token_ids) < MAX_TOKENS, f"no end in sight: {self.text[-200:]!r}"
        return self

    def _mark(self) -> Mark:
        return Mark(0, len(self.token_ids), 0)


class Writes:
    """Chooses the longest tokens that spell a text; stops at its end, or where the grammar wants something else."""

    def __init__(self, text: str, *, ends: bool = True) -> None:
        self._text = text.encode()
        self._ends = ends
        self.was_refused = False

    def __call__(self, walk: Walk, allowed: npt.NDArray[np.bool_] | None) -> int | None:
        written = walk.written
        if written.startswith(self._text):
            return walk.tokenizer.eos_token_ids[0] if self._ends else None
        token_id = None
        if self._text.startswith(written):
            token_id = longest_token(walk, self._text.removeprefix(written))
        if token_id is None or (allowed is not None and not allowed[token_id]):
            self.was_refused = True
            return None
        return token_id


def longest_token(walk: Walk, text: bytes) -> int:
    ids = _ids(walk.tokenizer, walk.shown)
    starts = [text.find(walk.token_bytes[token_id]) for token_id in walk.shown]
    next_special = min((start for start in starts if start > 0), default=len(text))
    if 0 not in starts:  # no text token runs into a special one
        text = text[:next_special]
    return next(ids[text[:length]] for length in range(MAX_TOKEN_BYTES, 0, -1) if text[:length] in ids)


def longest_prefixes(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of `text`, each the longest that fits."""
    ids = _ids(tokenizer, frozenset())
    rest, token_ids = text.encode(), []
    while rest:
        length = next(n for n in range(MAX_TOKEN_BYTES, 0, -1) if rest[:n] in ids)
        token_ids.append(ids[rest[:length]])
        rest = rest[length:]
    return token_ids


@cache
def _token_bytes(tokenizer: Tokenizer, shown: frozenset[int]) -> list[bytes]:
    return tokenizer.all_token_bytes(shown)


@cache
def _ids(tokenizer: Tokenizer, shown: frozenset[int]) -> dict[bytes, int]:
    pieces = _token_bytes(tokenizer, shown)
    return {piece: token_id for token_id, piece in reversed(list(enumerate(pieces))) if piece}


class Wanders:
    """Chooses at random among what is allowed; now and then the way out, so that texts end."""

    def __init__(self, seed: int, token_bytes: list[bytes]) -> None:
        self._dice = random.Random(seed)
        closing = [b'"', b"}", b"]", b'"}', b'",', b"e", b"0"]
        self._ways_out = [token_id for token_id, piece in enumerate(token_bytes) if piece in closing]

    def __call__(self, walk: Walk, allowed: npt.NDArray[np.bool_] | None) -> int | None:
        if allowed is None:
            return walk.tokenizer.eos_token_ids[0]
        ways_out = [token_id for token_id in self._ways_out if allowed[token_id]]
        if ways_out and self._dice.random() < 0.6:
            return self._dice.choice(ways_out)
        return int(self._dice.choice(np.flatnonzero(allowed)))
