"""Owns guesses at a sequence's next tokens, copied from what it has read before. Wrong ones cost time, never words.

What the watch expects is guessed to come: the rest of a call's marker, a value's opening quote. Else there are two
look-ups. Anywhere, the last tokens as they stand earlier in the sequence: the prompt, the tools' schemas, earlier
results. Inside a call, the word that an argument has begun, in the text before the call, tokenised anew from where it
goes on: `PVG` in a question and `"PVG` in an argument share no token. What the grammar does not allow is no guess.
Source: Saxena, Prompt Lookup Decoding, 2023.
"""

import math
import re
from collections.abc import Callable

from midstream.engine.sequence import Sequence

MAX_DRAFTS = 12
"""Tokens of one guess: what a pass computes beside its own token for little more than its own time."""

_NGRAM = 3
_WORD = re.compile(rb"[^\s\"'\[\]{}():,<>]*\Z")
_WORD_END = re.compile(rb"[\s\"'\[\]{}()<>]|[?!.,;:](?:\s|\Z)")
_MAX_WORD_BYTES = 48
_MAX_LOOKS = 16
_MEMORY = 0.8
"""Weight of what was known of a guess's worth against one new outcome."""

_SURE = 0.99
_MAX_TOGETHER = 16
"""Guessed tokens of all sequences in one step."""

Encode = Callable[[str], list[int]]


class Worth:
    """How likely a guessed token comes true where those before it did, the recent guesses weighing more."""

    def __init__(self, first: float) -> None:
        self._chance = first

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        num_tried = min(num_proposed, num_accepted + 1)
        self._chance = _MEMORY * self._chance + (1 - _MEMORY) * num_accepted / num_tried

    def num_worthwhile(self, num_rows: int) -> int:
        """How many tokens of a guess bring more than they cost in a step of `num_rows` sequences.

        Alone, a step waits for the weights, and a token more costs a fifth of it; in company it costs all but the
        same as a token of another sequence: docs/performance.md, "What a token more costs". The n-th token comes true
        with the chance to the power of n. All guesses together leave the step near its usual length.
        """
        cost = num_rows / (num_rows + 4)
        if self._chance <= cost:
            return 0
        num_paying = MAX_DRAFTS if self._chance > _SURE else int(math.log(cost) / math.log(self._chance))
        return min(num_paying, MAX_DRAFTS, max(1, _MAX_TOGETHER // num_rows))


class PromptLookup:
    """Guesses for one sequence. Owned by the engine's loop thread; costs O(tokens) once, then O(new tokens)."""

    def __init__(self, token_bytes: list[bytes], encode: Encode, max_model_len: int) -> None:
        self._token_bytes = token_bytes
        self._encode = encode
        self._max_model_len = max_model_len
        self._num_read = 0
        self._ends: dict[tuple[int, ...], int] = {}
        """For each n-gram but the last one the position after its latest occurrence."""
        self._text = b""
        self._call_start: int | None = None
        # A call copies from what was asked; other text seldom does, and has to show it.
        self._worth_in_calls, self._worth_elsewhere, self._worth_of_expected = Worth(0.9), Worth(0.5), Worth(0.9)
        self._worth = self._worth_elsewhere
        """Of the last guess."""

    def propose(self, seq: Sequence, num_rows: int) -> tuple[int, ...]:
        """Tokens that may follow all of `seq`, in a step of `num_rows` sequences; often none."""
        expected = seq.watch.expected_text()
        if expected:
            self._worth = self._worth_of_expected
        else:
            self._worth = self._worth_in_calls if seq.watch.is_in_call else self._worth_elsewhere
        room = min(
            self._worth.num_worthwhile(num_rows),
            seq.sampling.max_tokens - seq.num_generated - 1,
            self._max_model_len - seq.num_tokens - 1,
        )
        if room <= 0:
            return ()
        if expected:
            return tuple(self._encode(expected)[:room])
        self._read(seq)
        word = self._begun_word() if seq.watch.is_in_call else b""
        found = (self._from_word(word) if word else self._from_tokens(seq))[:room]
        return tuple(found[: seq.watch.num_allowed(found)])

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """The last guess has been checked."""
        self._worth.observe(num_proposed, num_accepted)

    def _read(self, seq: Sequence) -> None:
        """Take in the tokens that have come since the last look."""
        token_ids, num_known = seq.token_ids, len(seq.token_ids)
        for end in range(max(self._num_read, _NGRAM), num_known):
            self._ends[tuple(token_ids[end - _NGRAM : end])] = end
        self._text += b"".join([self._token_bytes[token_id] for token_id in token_ids[self._num_read :]])
        self._num_read = num_known
        if not seq.watch.is_in_call:
            self._call_start = None
        elif self._call_start is None:
            self._call_start = len(self._text)

    def _from_tokens(self, seq: Sequence) -> list[int]:
        """What followed the last tokens where they stood before."""
        at = self._ends.get(tuple(seq.token_ids[-_NGRAM:]))
        return [] if at is None else seq.token_ids[at : at + MAX_DRAFTS]

    def _begun_word(self) -> bytes:
        found = _WORD.search(self._text, max(0, len(self._text) - _MAX_WORD_BYTES))
        return found.group() if found else b""

    def _from_word(self, word: bytes) -> list[int]:
        """What follows `word` where a word before the call begins with it, in tokens of its own."""
        rest = self._rest_of(word)
        return self._encode(rest.decode("utf-8", errors="ignore")) if rest else []

    def _rest_of(self, word: bytes) -> bytes:
        """The latest word before the call that begins with `word` and goes on, without its beginning."""
        source = self._call_start or 0
        before = source
        for _ in range(_MAX_LOOKS):
            at = self._text.rfind(word, 0, before)
            if at < 0:
                return b""
            after = at + len(word)
            limit = min(source, after + _MAX_WORD_BYTES)
            end = _WORD_END.search(self._text, after, limit)
            rest = self._text[after : end.start() if end else limit]
            begins_a_word = at == 0 or not self._text[at - 1 : at].isalnum()
            if begins_a_word and rest:
                return rest
            before = after - 1
        return b""
