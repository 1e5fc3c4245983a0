"""The quantised products against plain numpy over the same blocks, with activations rounded the same way."""

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.engine.kernels.cpu import structs
from midstream.engine.kernels.cpu.repack import repack

Floats = npt.NDArray[np.float32]

TYPES = [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0]


def product(library: ctypes.CDLL, kind: GGMLQuantizationType, weights: Floats, x: Floats) -> tuple[Floats, Floats]:
    """(what the kernel gives, what the same rounded numbers give in float64) for x [T, K] and weights [rows, K]."""
    rows, columns = weights.shape
    raw = quantize(weights, kind)
    linear = repack(raw, kind, columns)
    y = np.full((len(x), linear.rows), np.nan, np.float32)
    library.ms_linear(
        ctypes.byref(structs.Linear.of(linear)), ctypes.c_void_p(x.ctypes.data), len(x), ctypes.c_void_p(y.ctypes.data)
    )
    exact = rounded(x).astype(np.float64) @ dequantize(raw, kind).astype(np.float64).T
    return y[:, :rows], exact.astype(np.float32)


def rounded(x: Floats) -> Floats:
    """x with every 32 values rounded to 8 bits under one scale, as the kernel rounds activations."""
    blocks = x.reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    values: Floats = np.rint(blocks * inverse) * (largest / np.float32(127))
    return values.reshape(x.shape)


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=40, deadline=None)
@given(
    num_tokens=st.integers(1, 70),
    rows=st.integers(1, 40),
    num_blocks=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_product_equals_that_of_the_same_rounded_numbers(
    library: ctypes.CDLL, kind: GGMLQuantizationType, num_tokens: int, rows: int, num_blocks: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((rows, num_blocks * 32), np.float32)
    x = rng.standard_normal((num_tokens, num_blocks * 32), np.float32) * np.float32(10.0 ** rng.integers(-3, 4))
    got, exact = product(library, kind, weights, x)
    np.testing.assert_allclose(got, exact, rtol=0, atol=3e-5 * np.abs(x).max() * num_blocks**0.5 * 32)


@pytest.mark.parametrize("kind", TYPES)
def test_the_largest_numbers_do_not_overflow(library: ctypes.CDLL, kind: GGMLQuantizationType) -> None:
    signs = np.where(np.arange(256) % 2, 1, -1).astype(np.float32)
    for weights in (np.ones((8, 256), np.float32), np.tile(signs, (8, 1))):
        for x in (np.ones((3, 256), np.float32), np.tile(signs, (3, 1))):
            got, exact = product(library, kind, weights, x)
            np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kind", TYPES)
def test_a_tokens_result_does_not_depend_on_its_neighbours(library: ctypes.CDLL, kind: GGMLQuantizationType) -> None:
    rng = np.random.default_rng(1)
    weights, x = rng.standard_normal((24, 192), np.float32), rng.standard_normal((67, 192), np.float32)
    together, _ = product(library, kind, weights, x)
    for t in (0, 1, 3, 64, 66):
        alone, _ = product(library, kind, weights, x[t : t + 1])
        assert np.array_equal(alone[0], together[t])


def test_zeros_give_zeros(library: ctypes.CDLL) -> None:
    got, _ = product(library, GGMLQuantizationType.Q4_0, np.ones((8, 64), np.float32), np.zeros((2, 64), np.float32))
    assert not got.any()
