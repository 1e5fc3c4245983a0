"""The choice of a token: against the distribution that the parameters define."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from midstream.engine.sampler import SamplingRow, sample, uniform
from midstream.engine.watch import Bitmask
from midstream.messages import SamplingParams

LOGITS = torch.tensor([1.0, 0.5, 2.0, -1.0, 0.0, 1.5, -2.0, 0.75])
NUM_DRAWS = 4000


def row(position: int = 0, *, bitmask: Bitmask | None = None, **fields: Any) -> SamplingRow:
    bans = {name: fields.pop(name) for name in ("banned_token_ids", "premature_token_ids") if name in fields}
    return SamplingRow(SamplingParams(**({"max_tokens": 1} | fields)), position, bitmask, **bans)


def sample_all(logits: Tensor, rows: list[SamplingRow]) -> list[int]:
    """One token for each row of `logits` [S, V]."""
    return [sample(logits[index].numpy(), asked) for index, asked in enumerate(rows)]


def draws(logits: Tensor = LOGITS, num_draws: int = NUM_DRAWS, **fields: Any) -> Counter[int]:
    """Draw at many positions, from 40 seeds."""
    rows = [row(position // 40, seed=position % 40, **fields) for position in range(num_draws)]
    return Counter(sample_all(logits.expand(num_draws, -1), rows))


def mask(allowed: list[int], vocab_size: int = len(LOGITS)) -> Bitmask:
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def assert_distributed(counts: Counter[int], probabilities: list[float]) -> None:
    """Chi-square at the 1 in 10,000 level, by Wilson and Hilferty's approximation; what has no chance never comes."""
    num_draws = counts.total()
    possible = [token_id for token_id, p in enumerate(probabilities) if p > 0]
    assert set(counts) <= set(possible)
    expected = [num_draws * probabilities[token_id] for token_id in possible]
    assert min(expected) >= 5, "too few draws for the test"
    statistic = sum((counts[i] - e) ** 2 / e for i, e in zip(possible, expected, strict=True))
    freedom = len(possible) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, f"{statistic:.1f} > {limit:.1f}: {counts}"


def softmax(logits: Tensor = LOGITS, temperature: float = 1.0) -> list[float]:
    return [float(p) for p in torch.softmax(logits.double() / temperature, 0)]


def only(kept: list[int], temperature: float = 1.0) -> list[float]:
    probabilities = [p if i in kept else 0.0 for i, p in enumerate(softmax(temperature=temperature))]
    return [p / sum(probabilities) for p in probabilities]


# --- greedy ---


def test_temperature_zero_takes_the_best_token_and_of_equals_the_first() -> None:
    assert sample_all(LOGITS.unsqueeze(0), [row(temperature=0)]) == [2]
    assert sample_all(torch.tensor([[0.0, 3.0, 3.0, 1.0]]), [row(temperature=0)]) == [1]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300, 5e-324])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float) -> None:
    assert draws(num_draws=50, temperature=temperature) == {2: 50}


def test_a_low_temperature_is_all_but_greedy() -> None:
    assert draws(num_draws=200, temperature=1e-4) == {2: 200}


# --- distributions ---


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    assert_distributed(draws(temperature=temperature), softmax(temperature=temperature))


@pytest.mark.parametrize(("top_k", "kept"), [(1, [2]), (2, [2, 5]), (4, [2, 5, 0, 7])])
def test_top_k_keeps_the_best(top_k: int, kept: list[int]) -> None:
    counts = draws(top_k=top_k)
    assert set(counts) == set(kept)
    if top_k > 1:
        assert_distributed(counts, only(kept))


@pytest.mark.parametrize("top_k", [0, 8, 9, 10**9])
def test_a_top_k_of_everything_changes_nothing(top_k: int) -> None:
    assert draws(num_draws=500, top_k=top_k) == draws(num_draws=500)


def test_of_equal_tokens_at_the_edge_of_top_k_the_first_are_kept() -> None:
    logits = torch.zeros(6)
    assert set(draws(logits, 500, top_k=3)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("top_p", "num_kept"),
    [(1e-300, 1), (1e-9, 1), (0.37, 1), (0.38, 2), (0.61, 3), (0.999, 8)],  # the sums are 0.372, 0.598, 0.735 …
)
def test_top_p_keeps_the_smallest_set_that_holds_so_much(top_p: float, num_kept: int) -> None:
    kept = [2, 5, 0, 7, 1, 4, 3, 6][:num_kept]
    counts = draws(top_p=top_p)
    assert set(counts) == set(kept)
    if num_kept > 1:
        assert_distributed(counts, only(kept))


def test_a_set_that_holds_exactly_top_p_is_enough() -> None:
    logits = torch.tensor([0.5, 0.25, 0.25]).log()
    assert set(draws(logits, 500, top_p=0.5)) == {0}


@pytest.mark.parametrize(
    ("min_p", "kept"),
    [(0.0, [0, 1, 2, 3, 4, 5, 6, 7]), (0.3, [2, 5, 0]), (0.36, [2, 5, 0]), (0.37, [2, 5]), (1.0, [2])],
)
def test_min_p_keeps_what_reaches_its_share_of_the_best(min_p: float, kept: list[int]) -> None:
    counts = draws(min_p=min_p)
    assert set(counts) == set(kept)
    if len(kept) > 1:
        assert_distributed(counts, only(kept))


def test_min_p_of_one_keeps_all_of_the_best() -> None:
    assert set(draws(torch.tensor([1.0, 3.0, 3.0, 0.0]), 500, min_p=1.0)) == {1, 2}


def test_temperature_comes_before_the_cuts() -> None:
    # At temperature 2 the best three hold 0.59: top_p 0.5 keeps three of them, not two.
    assert set(draws(temperature=2.0, top_p=0.5)) == {2, 5, 0}
    assert_distributed(draws(temperature=2.0, top_p=0.5), only([2, 5, 0], temperature=2.0))


def test_the_cuts_combine() -> None:
    assert set(draws(top_k=4, top_p=0.9, min_p=0.3)) == {2, 5, 0}


# --- seeds ---


def test_a_seed_and_a_position_name_the_draw_whatever_else_is_in_the_batch() -> None:
    wide = torch.randn(50, 300, generator=torch.Generator().manual_seed(3))
    rows = [row(position, seed=position * 31, top_p=0.95, top_k=position % 7 * 40) for position in range(50)]
    together = sample_all(wide, rows)
    assert together == [sample_all(wide[i : i + 1], rows[i : i + 1])[0] for i in range(50)]
    order = list(range(49, -1, -1))
    assert sample_all(wide[order], [rows[i] for i in order]) == [together[i] for i in order]


def test_seeds_and_positions_differ() -> None:
    flat = torch.zeros(1000)
    assert len(draws(flat, 400)) > 300


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 20))
def test_the_uniform_number_is_one_from_zero_to_below_one(seed: int, position: int) -> None:
    number = uniform(seed, position)
    assert 0 <= number < 1
    assert number == uniform(seed, position)


@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_uniform_numbers_are_uniform(along: str) -> None:
    numbers = [uniform(7, i) if along == "positions" else uniform(i, 7) for i in range(10_000)]
    assert_distributed(Counter(int(number * 20) for number in numbers), [1 / 20] * 20)


# --- masks and bans ---


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_allows_nothing_else(temperature: float) -> None:
    counts = draws(temperature=temperature, bitmask=mask([0, 3, 7]))
    if temperature == 0:
        assert set(counts) == {0}
    else:
        assert_distributed(counts, only([0, 3, 7]))


@pytest.mark.parametrize("vocab_size", [31, 32, 33, 64, 70])
def test_every_bit_of_a_mask_is_its_tokens(vocab_size: int) -> None:
    logits = torch.zeros(1, vocab_size)
    for token_id in range(vocab_size):
        assert sample_all(logits, [row(temperature=0, bitmask=mask([token_id], vocab_size))]) == [token_id]


def test_a_mask_of_one_token_beats_every_cut() -> None:
    assert draws(num_draws=50, bitmask=mask([6]), top_k=1, top_p=0.01, min_p=1.0) == {6: 50}


def test_a_banned_token_never_comes() -> None:
    assert_distributed(draws(banned_token_ids=(2, 5)), only([0, 1, 3, 4, 6, 7]))
    assert draws(num_draws=20, temperature=0, banned_token_ids=(2,)) == {5: 20}


def test_a_premature_end_comes_only_where_the_mask_allows_nothing_else() -> None:
    assert draws(num_draws=20, temperature=0, premature_token_ids=(2, 5)) == {0: 20}
    assert draws(num_draws=20, temperature=0, premature_token_ids=(2, 5), bitmask=mask([2, 3])) == {3: 20}
    assert draws(num_draws=20, temperature=0, premature_token_ids=(2, 5), bitmask=mask([2, 5])) == {2: 20}


def test_ids_beyond_the_vocabulary_ban_nothing() -> None:
    far = (8, 10**6, 1 << 70)
    assert draws(num_draws=20, temperature=0, banned_token_ids=far, premature_token_ids=far) == {2: 20}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40),
    st.floats(0, 2),
    st.integers(0, 50),
    st.floats(0, 1, exclude_min=True),
    st.floats(0, 1),
    st.integers(0, 1 << 40),
    st.data(),
)
def test_any_parameters_give_an_allowed_token(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int, data: st.DataObject
) -> None:
    vocab_size = len(values)
    allowed = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, unique=True))
    params = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    [token_id] = sample_all(torch.tensor([values]), [row(3, bitmask=mask(allowed, vocab_size), **params)])
    assert token_id in allowed
