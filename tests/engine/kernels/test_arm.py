"""The kernels' tests on a library built for ARM, with its dot product and without, under an emulator."""

import ctypes
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from midstream.engine.kernels.cpu import structs
from midstream.engine.kernels.cpu.repack import repack
from tests.engine.kernels import test_attention, test_families, test_linear, test_repack
from tests.engine.kernels.emulator import EmulatedLibrary, build, missing_tools
from tests.engine.saved import VARIANTS, save, saved_files

INSTRUCTION_SETS = {"armv8-a": "NEON", "armv8.2-a+dotprod": "NEON dot product"}
"""By the compiler's name for a CPU that has no more."""


@pytest.fixture(scope="module", params=list(INSTRUCTION_SETS))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if missing_tools():
        pytest.skip(f"not installed: {', '.join(missing_tools())}")
    folder = tmp_path_factory.mktemp("arm")
    build(request.param, folder / "driver")
    emulated = EmulatedLibrary(folder / "driver", folder)
    assert emulated.instruction_set() == INSTRUCTION_SETS[request.param]
    return cast(ctypes.CDLL, emulated)


@pytest.mark.parametrize("kind", test_linear.TYPES)
def test_quantised_products_equal_those_of_the_same_rounded_numbers(library: ctypes.CDLL, kind: Kind) -> None:
    rng = np.random.default_rng(2)
    weights, x = rng.standard_normal((40, 288), np.float32), rng.standard_normal((7, 288), np.float32)
    got, exact = test_linear.product(library, kind, weights, x)
    np.testing.assert_allclose(got, exact, rtol=0, atol=3e-5 * np.abs(x).max() * 9**0.5 * 32)
    test_linear.test_the_largest_numbers_do_not_overflow(library, kind)
    test_linear.test_a_tokens_result_does_not_depend_on_its_neighbours(library, kind)
    test_repack.test_a_product_of_repacked_rows_adds_their_biases(library, kind)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
def test_float_products_equal_those_of_float64(library: ctypes.CDLL, kind: Kind) -> None:
    rng = np.random.default_rng(3)
    raw = test_repack.random_rows(kind, 21, 96, rng)
    linear = repack(raw, kind, 96)
    x, y = rng.standard_normal((7, 96), np.float32), np.full((7, linear.rows), np.nan, np.float32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
    library.ms_linear(ctypes.byref(structs.Linear.of(linear)), pointers[0], 7, pointers[1])
    np.testing.assert_allclose(y[:, :21], x.astype(np.float64) @ dequantize(raw, kind).T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", test_repack.KINDS)
def test_repacking_keeps_every_value(library: ctypes.CDLL, kind: Kind) -> None:
    raw = test_repack.random_rows(kind, 16, 64, np.random.default_rng(4))
    got, expected = test_repack.dequantised(library, repack(raw, kind, 64)), dequantize(raw, kind)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2**-22 * np.abs(expected).max())


@pytest.mark.parametrize(
    "sizes",
    [
        {"groups": 3, "ratio": 3, "head_dim": 64, "block": 16, "window": 0, "start": 90, "num_tokens": 5},
        {"groups": 1, "ratio": 4, "head_dim": 80, "block": 3, "window": 40, "start": 61, "num_tokens": 14},
        {"groups": 2, "ratio": 1, "head_dim": 16, "block": 32, "window": 5, "start": 0, "num_tokens": 1},
    ],
)
def test_attention_equals_a_float64_softmax(library: ctypes.CDLL, sizes: dict[str, int]) -> None:
    arguments = test_attention.case(6, **sizes)
    got, expected = test_attention.attend(library, *arguments), test_attention.reference(*arguments)
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6)


def test_a_query_gives_the_same_bits_however_prefill_was_cut(library: ctypes.CDLL) -> None:
    test_attention.test_a_query_gives_the_same_bits_however_prefill_was_cut(library)


@pytest.mark.parametrize("variant", ["biases", "qwen3", "gemma3"])
def test_whole_steps_give_the_torch_paths_logits(library: ctypes.CDLL, tmp_path: Path, variant: str) -> None:
    kind, fields = VARIANTS[variant]
    save(tmp_path, kind, test_families.WIDE | fields)
    files = saved_files(tmp_path)
    test_families.test_a_batch_of_any_lengths_gives_the_torch_paths_logits(library, files, 40)


def test_whole_steps_of_quantised_weights_predict_what_the_same_values_do_in_fp32(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    test_families.test_weights_of_any_type_predict_what_the_same_values_do_in_fp32(
        library, tmp_path, torch.float32, Kind.Q4_0, 0.02
    )
