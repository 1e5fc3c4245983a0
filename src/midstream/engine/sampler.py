"""Owns the choice of the next token from its logits. Keeps no state: a draw depends on seed and position only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from midstream.engine.watch import Bitmask
from midstream.messages import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them leaves the range of a float32."""

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

_MASK64 = (1 << 64) - 1
_STRETCH = 64
_FIRST_NUCLEUS = 64
"""Tokens that a `top_p` most often needs; more are sorted only where they do not hold enough."""


@dataclass(frozen=True)
class SamplingRow:
    """What one sequence asks of the sampler at one position."""

    params: SamplingParams
    position: int
    """Tokens before the one to sample: with the seed, it names the draw."""
    bitmask: Bitmask | None
    """[ceil(V / 32)] int32, bit set = allowed; None allows everything."""
    banned_token_ids: Sequence[int] = ()
    premature_token_ids: Sequence[int] = ()
    """Ends that come too early for `min_tokens`: taken only where the mask allows nothing else."""


def sample(logits: Floats, row: SamplingRow) -> int:
    """One token for `row` from its logits [V]; a mask that would leave nothing is a bug of whoever made it. O(V)."""
    logits = _allowed(logits, row)
    if row.params.temperature < GREEDY_BELOW:
        return int(logits.argmax())
    scaled = logits * np.float32(1 / row.params.temperature)
    weights, token_ids = _candidates(np.exp(scaled - scaled.max()), row.params)  # [K], [K]
    index = _index_at(weights, uniform(row.params.seed, row.position))
    return index if token_ids is None else int(token_ids[index])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that `seed` and `position` determine. Source: SplitMix64, Steele et al., OOPSLA 2014."""
    z = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def _index_at(weights: Floats, share: float) -> int:
    """The first index up to which `weights` hold more than `share` of their sum: first its stretch, then within it."""
    whole = len(weights) // _STRETCH * _STRETCH
    sums = np.append(weights[:whole].reshape(-1, _STRETCH).sum(axis=1), weights[whole:].sum()).astype(np.float64)
    until = sums.cumsum()
    wanted = share * until[-1]
    stretch = min(int(until.searchsorted(wanted, side="right")), int(np.flatnonzero(sums)[-1]))
    part = weights[stretch * _STRETCH : (stretch + 1) * _STRETCH].astype(np.float64)
    inside = int((until[stretch] - sums[stretch] + part.cumsum()).searchsorted(wanted, side="right"))
    # Rounding may leave a sum a hair below what is wanted; what has no weight still never comes.
    return stretch * _STRETCH + min(inside, int(np.flatnonzero(part)[-1]))


def _allowed(logits: Floats, row: SamplingRow) -> Floats:
    """`logits` with what may not come ruled out; untouched itself."""
    if row.bitmask is not None:
        allowed = _unpack(row.bitmask, logits.shape[0])  # [V] bool
        assert allowed.any(), "the grammar allows no token"
        logits = np.where(allowed, logits, np.float32(-np.inf))
    logits = _without(logits, row.banned_token_ids)
    if row.premature_token_ids:
        in_time = _without(logits, row.premature_token_ids)
        logits = in_time if in_time.max() > -np.inf else logits
    return logits


def _without(logits: Floats, token_ids: Sequence[int]) -> Floats:
    """`logits` [V] with those of `token_ids` ruled out. Ids beyond the vocabulary name nothing."""
    known = [token_id for token_id in token_ids if token_id < logits.shape[0]]
    if not known:
        return logits
    logits = logits.copy()
    logits[known] = -np.inf
    return logits


def _candidates(weights: Floats, params: SamplingParams) -> tuple[Floats, Ids | None]:
    """What top-k, the nucleus and the floor leave of `weights` [V], whose best is 1: weights and ids, both [K].

    In the order of their ids; without any of the three, all of them (None). Of equal ones the first ids are kept,
    and the best token always stays.
    """
    vocab_size = weights.shape[0]
    kept = params.top_k if 0 < params.top_k < vocab_size else vocab_size
    if kept == vocab_size and params.top_p >= 1 and params.min_p <= 0:
        return weights, None
    total = weights.sum() if kept == vocab_size else _best(weights, kept)[0].sum()
    num_sorted = kept if params.top_p >= 1 else min(kept, _FIRST_NUCLEUS)
    while True:
        best, token_ids = _best(weights, num_sorted)
        before = best.astype(np.float64).cumsum() - best  # [num_sorted], mass of the better ones
        if num_sorted == kept or before[-1] >= params.top_p * total:
            break
        num_sorted = min(kept, 8 * num_sorted)
    stays = best >= params.min_p * best[0]
    if params.top_p < 1:
        stays &= before < params.top_p * total
    stays[0] = True  # a `top_p` that is 0 as a float32 leaves the best, too
    by_id = token_ids[stays].argsort()
    return best[stays][by_id], token_ids[stays][by_id]


def _best(weights: Floats, num: int) -> tuple[Floats, Ids]:
    """The `num` largest, falling, equal ones by token id, with their ids."""
    if num < weights.shape[0]:
        edge = np.partition(weights, -num)[-num]
        above = np.flatnonzero(weights > edge)
        token_ids = np.concatenate([above, np.flatnonzero(weights == edge)[: num - len(above)]])
    else:
        token_ids = np.arange(num)
    order = np.lexsort((token_ids, -weights[token_ids]))
    return weights[token_ids[order]], token_ids[order]


def _unpack(bitmask: Bitmask, vocab_size: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(bitmask.view(np.uint8), bitorder="little")
    assert len(bits) >= vocab_size, "the mask is shorter than the vocabulary"
    return bits[:vocab_size].view(np.bool_)
