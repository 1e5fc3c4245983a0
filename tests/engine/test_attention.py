"""The reference attention against plain arithmetic in float64."""

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.engine.attention.reference import RaggedAttention, RowContext, paged_attention

Array = npt.NDArray[np.float64]


def naive(query: Array, keys: Array, values: Array, scale: float, window: int | None) -> Array:
    """Attention of the last t positions of one sequence, in the words of the definition.

    query [t, H, D]; keys and values [C, G, D]; returns [t, H, D].
    """
    num_queries, num_heads, _ = query.shape
    context, num_kv_heads, _ = keys.shape
    output = np.zeros_like(query)
    for i in range(num_queries):
        position = context - num_queries + i
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            scores = keys[first : position + 1, kv_head] @ query[i, head] * scale
            weights = np.exp(scores - scores.max())
            output[i, head] = weights / weights.sum() @ values[first : position + 1, kv_head]
    return output


@st.composite
def contexts(draw: st.DrawFn) -> tuple[int, int]:
    """(tokens in the context, of which so many are new)."""
    context = draw(st.integers(1, 12))
    return context, draw(st.integers(1, context))


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(contexts(), min_size=1, max_size=4),
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.sampled_from([2, 4, 6, 16]),
    window=st.none() | st.integers(1, 13),
    scale=st.floats(0.05, 2),
    seed=st.integers(0, 1000),
)
def test_every_row_attends_to_its_own_past_and_to_nothing_else(
    rows: list[tuple[int, int]],
    num_kv_heads: int,
    group: int,
    head_dim: int,
    window: int | None,
    scale: float,
    seed: int,
) -> None:
    dice = np.random.default_rng(seed)
    num_slots = sum(context for context, _ in rows) + 5
    keys, values = dice.normal(size=(2, num_slots, num_kv_heads, head_dim))
    query = dice.normal(size=(sum(num_new for _, num_new in rows), num_kv_heads * group, head_dim))
    free, start, contexts, expected = dice.permutation(num_slots), 0, [], []
    for context, num_new in rows:
        slots, free = free[:context], free[context:]
        contexts.append(RowContext(start, start + num_new, torch.from_numpy(slots)))
        expected.append(naive(query[start : start + num_new], keys[slots], values[slots], scale, window))
        start += num_new
    metadata = RaggedAttention(torch.zeros(0, dtype=torch.int64), contexts)
    as_float = [torch.from_numpy(array).float() for array in (query, keys, values)]
    got = paged_attention(as_float[0], as_float[1], as_float[2], metadata, scale=scale, sliding_window=window)
    np.testing.assert_allclose(got.numpy(), np.concatenate(expected), atol=1e-5, rtol=1e-5)


def test_keys_and_values_may_be_of_another_type_than_the_query() -> None:
    query, cache = torch.randn(1, 2, 4), torch.randn(2, 3, 1, 4)
    metadata = RaggedAttention(torch.zeros(0, dtype=torch.int64), [RowContext(0, 1, torch.arange(3))])
    keys, values = cache.bfloat16()
    got = paged_attention(query, keys, values, metadata, scale=0.5, sliding_window=None)
    rounded = paged_attention(query, keys.float(), values.float(), metadata, scale=0.5, sliding_window=None)
    assert torch.equal(got, rounded)
