"""Owns sampling on the device: all rows at once, one transfer in, one out. Gives what `engine/sampler.py` gives.

To the token where rounding leaves it: sums are taken in another order, so a draw that falls within 1e-6 of the edge
between two tokens may give the other one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from midstream.engine.sampler import GREEDY_BELOW, SamplingRow, uniform


def sample_on_device(logits: Tensor, rows: list[SamplingRow]) -> Tensor:
    """One token for each row of `logits` [S, V]: [S] int64 on the same device."""
    logits = _allowed(logits.float(), rows)
    greedy = logits.argmax(-1)  # [S]
    if all(row.params.temperature < GREEDY_BELOW for row in rows):
        return greedy
    numbers = torch.tensor([_numbers(row) for row in rows], dtype=torch.float32, device=logits.device)  # [S, 5]
    temperature, top_k, top_p, min_p, draw = (column.unsqueeze(1) for column in numbers.unbind(1))  # [S, 1] each
    scaled = logits / temperature.clamp(min=GREEDY_BELOW)
    weights = torch.exp(scaled - scaled.amax(-1, keepdim=True))  # [S, V]
    kept = _kept(weights, top_k, top_p, min_p)
    cumulative = torch.where(kept, weights, 0).double().cumsum(-1)  # [S, V]
    sampled = torch.searchsorted(cumulative, draw.double() * cumulative[:, -1:], right=True).squeeze(1)  # [S]
    last = torch.where(kept, torch.arange(logits.shape[1], device=logits.device), -1).amax(-1)
    return torch.where(temperature.squeeze(1) < GREEDY_BELOW, greedy, torch.minimum(sampled, last))


def _numbers(row: SamplingRow) -> tuple[float, float, float, float, float]:
    params = row.params
    return (params.temperature, params.top_k, params.top_p, params.min_p, uniform(params.seed, row.position))


def _kept(weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """What top-k, the nucleus and the floor leave: [S, V] bool. The best token always stays."""
    ordered, token_ids = torch.sort(weights, descending=True, stable=True)  # [S, V] each
    rank = torch.arange(weights.shape[1], device=weights.device)  # [V]
    in_top_k = (top_k <= 0) | (rank < top_k)  # [S, V]
    mass = torch.where(in_top_k, ordered, 0).double()
    before = mass.cumsum(-1) - mass
    stays = in_top_k & ((top_p >= 1) | (before < top_p * mass.sum(-1, keepdim=True)))
    stays &= ordered >= min_p * ordered[:, :1]
    stays[:, 0] = True
    return torch.zeros_like(stays).scatter(1, token_ids, stays)


def _allowed(logits: Tensor, rows: list[SamplingRow]) -> Tensor:
    """`logits` [S, V] with what may not come ruled out."""
    if any(row.bitmask is not None for row in rows):
        logits = logits.masked_fill(~_unpack(rows, logits), -torch.inf)
    logits = _without(logits, [row.banned_token_ids for row in rows])
    if any(row.premature_token_ids for row in rows):
        in_time = _without(logits, [row.premature_token_ids for row in rows])
        has_other = in_time.amax(-1, keepdim=True) > -torch.inf
        logits = torch.where(has_other, in_time, logits)
    return logits


def _without(logits: Tensor, token_ids: list[Sequence[int]]) -> Tensor:
    """`logits` [S, V] with each row's `token_ids` ruled out. Ids beyond the vocabulary name nothing."""
    pairs = [(index, i) for index, ids in enumerate(token_ids) for i in ids if i < logits.shape[1]]
    if not pairs:
        return logits
    where = torch.tensor(pairs, device=logits.device)  # [pairs, 2]
    return logits.index_put((where[:, 0], where[:, 1]), torch.tensor(-torch.inf, device=logits.device))


def _unpack(rows: list[SamplingRow], logits: Tensor) -> Tensor:
    """The rows' masks as [S, V] bool; all True for a row without one."""
    words = next(row.bitmask.shape[0] for row in rows if row.bitmask is not None)
    everything = np.full(words, -1, np.int32)
    packed = np.stack([everything if row.bitmask is None else row.bitmask for row in rows])  # [S, words]
    on_device = torch.from_numpy(packed).to(logits.device)
    bits = on_device.unsqueeze(-1) >> torch.arange(32, device=logits.device, dtype=torch.int32) & 1  # [S, words, 32]
    return bits.flatten(1)[:, : logits.shape[1]].bool()
