"""The paged attention kernel against a float64 softmax over the same fp16 keys and values."""

import ctypes

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


class Shape(ctypes.Structure):
    """`AttentionShape` of attention.h."""

    _fields_ = [
        *[(n, ctypes.c_int) for n in ("num_heads", "num_kv_heads", "head_dim", "block_size", "sliding_window")],
        ("scale", ctypes.c_float),
        ("block_stride", ctypes.c_int64),
    ]


def attend(
    library: ctypes.CDLL, shape: Shape, start: int, table: list[int], query: Floats, keys: Halves, values: Halves
) -> Floats:
    output = np.full_like(query, np.nan)
    table_array = np.array(table, np.int32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (table_array, query, keys, values, output)]
    library.ms_attend(ctypes.byref(shape), len(query), start, *pointers)
    return output


def reference(
    shape: Shape, start: int, table: list[int], query: Floats, keys: Halves, values: Halves
) -> npt.NDArray[np.float64]:
    H, G, D, B = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.block_size
    output = np.zeros((len(query), H, D))
    q = query.reshape(len(query), H, D).astype(np.float64)
    context = start + len(query)
    positions = range(context)
    for h in range(H):
        g = h // (H // G)
        k = np.array([keys[table[p // B], g, p % B] for p in positions], np.float64)  # [C, D]
        v = np.array([values[table[p // B], g, p % B] for p in positions], np.float64)  # [C, D]
        for t in range(len(query)):
            seen = start + t + 1
            first = max(0, seen - shape.sliding_window) if shape.sliding_window else 0
            scores = k[first:seen] @ q[t, h] * shape.scale
            weights = np.exp(scores - scores.max())
            output[t, h] = weights / weights.sum() @ v[first:seen]
    return output.reshape(len(query), H * D)


def case(
    seed: int, *, groups: int, ratio: int, head_dim: int, block: int, window: int, start: int, num_tokens: int
) -> tuple[Shape, int, list[int], Floats, Halves, Halves]:
    rng = np.random.default_rng(seed)
    num_blocks = -(-(start + num_tokens) // block)
    table = [int(b) for b in rng.permutation(num_blocks + 3)[:num_blocks]]
    cache = (num_blocks + 3, 3, 2, groups, block, head_dim)
    kv = rng.standard_normal(cache, np.float32).astype(np.float16)
    keys, values = kv[:, 1, 0], kv[:, 1, 1]
    query = rng.standard_normal((num_tokens, groups * ratio * head_dim), np.float32)
    shape = Shape(groups * ratio, groups, head_dim, block, window, head_dim**-0.5, kv[0].size)
    return shape, start, table, query, keys, values


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.integers(1, 3),
    ratio=st.integers(1, 4),
    head_dim=st.sampled_from([16, 32, 64, 80, 128]),
    block=st.sampled_from([1, 3, 8, 16, 32]),
    window=st.sampled_from([0, 1, 5, 40]),
    start=st.integers(0, 90),
    num_tokens=st.integers(1, 14),
)
def test_attention_equals_a_float64_softmax(library: ctypes.CDLL, seed: int, **sizes: int) -> None:
    arguments = case(seed, **sizes)
    np.testing.assert_allclose(attend(library, *arguments), reference(*arguments), rtol=0, atol=3e-6)


def test_a_context_of_8192_tokens(library: ctypes.CDLL) -> None:
    arguments = case(3, groups=1, ratio=3, head_dim=64, block=16, window=0, start=8190, num_tokens=2)
    np.testing.assert_allclose(attend(library, *arguments), reference(*arguments), rtol=0, atol=3e-6)


def test_a_query_gives_the_same_bits_however_prefill_was_cut(library: ctypes.CDLL) -> None:
    shape, _, table, query, keys, values = case(
        5, groups=3, ratio=3, head_dim=64, block=16, window=0, start=0, num_tokens=50
    )
    whole = attend(library, shape, 0, table, query, keys, values)
    for cut in (1, 7, 16, 33, 49):
        rest = attend(library, shape, cut, table, query[cut:].copy(), keys, values)
        assert np.array_equal(rest, whole[cut:])
