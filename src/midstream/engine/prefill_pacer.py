"""Owns how much prefill shares a step with sequences that decode: as much as makes the step not twice as long."""

from midstream.engine.batch import Batch

MAX_SLOWDOWN = 1.7
"""A step with prefill in it may take so many times what one without takes."""

LEAST_TOKENS = 8
"""Prefill goes on however slow it is."""

_MEMORY = 0.8
"""Weight of what was known against one new measurement."""


class PrefillPacer:
    """Learns what a step of decoding takes and what a token of prefill adds to it. Owned by the scheduler."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode_s: float | None = None
        self._token_s: float | None = None

    def limit(self, num_decoding: int) -> int:
        """Tokens of prefill for a step in which `num_decoding` sequences decode."""
        if num_decoding == 0:
            return self._max_tokens
        if self._decode_s is None or self._token_s is None:
            return min(self._max_tokens, 4 * LEAST_TOKENS)
        spare_s = (MAX_SLOWDOWN - 1) * self._decode_s
        return min(self._max_tokens, max(LEAST_TOKENS, int(spare_s / max(self._token_s, 1e-9))))

    def observe(self, batch: Batch, took_s: float) -> None:
        """The step that computed `batch` took `took_s` seconds, sampling aside."""
        num_prefill = sum(row.num_new for row in batch.rows if row.seq.is_prefilling)
        num_computed = sum(len(row.token_ids) for row in batch.rows)
        if num_prefill == 0 and num_computed <= 2 * len(batch.rows):
            self._decode_s = _blend(self._decode_s, took_s)
        elif num_prefill >= LEAST_TOKENS:
            has_decoding = any(not row.seq.is_prefilling for row in batch.rows)
            other_s = self._decode_s or 0.0 if has_decoding else 0.0
            self._token_s = _blend(self._token_s, max(0.0, took_s - other_s) / num_prefill)


def _blend(known: float | None, new: float) -> float:
    return new if known is None else _MEMORY * known + (1 - _MEMORY) * new
