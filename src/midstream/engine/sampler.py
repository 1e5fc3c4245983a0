"""Owns the choice of the next token from its logits. Keeps no state: a draw depends on seed and position only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from midstream.engine.watch import Bitmask
from midstream.messages import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them leaves the range of a float32."""

_MASK64 = (1 << 64) - 1


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


def sample(logits: Tensor, rows: list[SamplingRow]) -> list[int]:
    """One token for each row of `logits` [S, V]. Rows do not influence each other. O(S x V)."""
    return [_sample_row(logits[index], row) for index, row in enumerate(rows)]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that `seed` and `position` determine. Source: SplitMix64, Steele et al., OOPSLA 2014."""
    z = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def _sample_row(logits: Tensor, row: SamplingRow) -> int:
    """logits [V]; a mask that would leave nothing is a bug of whoever made it."""
    if row.bitmask is not None:
        allowed = torch.from_numpy(_unpack(row.bitmask, logits.shape[0]))  # [V] bool
        assert bool(allowed.any()), "the grammar allows no token"
        logits = logits.masked_fill(~allowed, -torch.inf)
    logits = _without(logits, row.banned_token_ids)
    if row.premature_token_ids:
        in_time = _without(logits, row.premature_token_ids)
        logits = in_time if float(in_time.max()) > -torch.inf else logits
    params = row.params
    if params.temperature < GREEDY_BELOW:
        return int(logits.argmax())
    kept, token_ids = _top_k(logits.float() / params.temperature, params.top_k)  # [K], [K]
    probabilities = torch.softmax(kept, dim=0)  # [K], falling
    probabilities = _top_p_min_p(probabilities, params)
    cumulative = probabilities.double().cumsum(0)  # [K]
    draw = uniform(params.seed, row.position) * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, torch.tensor(draw, dtype=torch.float64), right=True))
    return int(token_ids[min(index, len(token_ids) - 1)])


def _without(logits: Tensor, token_ids: Sequence[int]) -> Tensor:
    """`logits` [V] with those of `token_ids` ruled out. Ids beyond the vocabulary name nothing."""
    known = [token_id for token_id in token_ids if token_id < logits.shape[0]]
    return logits.index_fill(0, torch.tensor(known), -torch.inf) if known else logits


def _top_k(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The `top_k` best (0: all) in falling order, equal ones by token id, so that the order never wavers."""
    values, token_ids = torch.sort(logits, descending=True, stable=True)  # [V], [V]
    k = min(top_k, logits.shape[0]) if top_k > 0 else logits.shape[0]
    return values[:k], token_ids[:k]


def _top_p_min_p(probabilities: Tensor, params: SamplingParams) -> Tensor:
    """Zero what the nucleus and the floor leave out; the best token always stays."""
    if params.top_p < 1:
        before = probabilities.cumsum(0) - probabilities  # [K], mass of the better ones
        is_beyond = before >= params.top_p
        is_beyond[0] = False  # a `top_p` that is 0 as a float32 leaves the best, too
        probabilities = probabilities.masked_fill(is_beyond, 0)
    if params.min_p > 0:
        probabilities = probabilities.masked_fill(probabilities < params.min_p * probabilities[0], 0)
    return probabilities


def _unpack(bitmask: Bitmask, vocab_size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    bits = np.unpackbits(bitmask.view(np.uint8), bitorder="little")
    assert len(bits) >= vocab_size, "the mask is shorter than the vocabulary"
    return bits[:vocab_size].astype(np.bool_)
