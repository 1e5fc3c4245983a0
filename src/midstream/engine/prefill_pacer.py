"""Owns how much prefill shares a step with sequences that decode: whoever waits counts as much as whoever reads."""

from midstream.engine.batch import Batch

SHARE = 0.6
"""What prefill may add to a step, in the time of one without, while hardly anyone waits for it. With as many prompts as
decoding sequences it is twice that: to fill a batch soon is worth more to all of them than a steady pace to a few."""

LEAST_TOKENS = 8
"""Prefill goes on however slow it is."""

_MEMORY = 0.8
"""Weight of what was known against one new measurement."""


class PrefillPacer:
    """Learns what a step of decoding takes and what a token of a mixed step does. Owned by the scheduler."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode_s: float | None = None
        self._token_s: float | None = None

    @property
    def token_s(self) -> float:
        """What one token of a prompt costs; 0 while no prompt has been measured."""
        return self._token_s or 0.0

    def limit(self, num_decoding: int, num_prefilling: int) -> int:
        """Tokens of prefill for a step in which `num_decoding` sequences decode and the others have prompts left."""
        if num_decoding == 0:
            return self._max_tokens
        if self._decode_s is None or self._token_s is None:
            return min(self._max_tokens, 4 * LEAST_TOKENS)
        # While prompts keep coming no step shows what so many sequences take by themselves; their tokens tell.
        decode_s = max(self._decode_s, num_decoding * self._token_s)
        spare_s = SHARE * decode_s * (1 + num_prefilling / num_decoding)
        return min(self._max_tokens, max(LEAST_TOKENS, int(spare_s / max(self._token_s, 1e-9))))

    def observe(self, batch: Batch, took_s: float) -> None:
        """The step that computed `batch` took `took_s` seconds, sampling aside."""
        num_prefill = sum(row.num_new for row in batch.rows if row.seq.is_prefilling)
        num_computed = sum(len(row.token_ids) for row in batch.rows)
        if num_prefill == 0 and num_computed <= 2 * len(batch.rows):
            self._decode_s = _blend(self._decode_s, took_s)
        elif num_prefill >= LEAST_TOKENS:
            self._token_s = _blend(self._token_s, took_s / num_computed)


def _blend(known: float | None, new: float) -> float:
    return new if known is None else _MEMORY * known + (1 - _MEMORY) * new
