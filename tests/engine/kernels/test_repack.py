"""Repacking keeps every value; what becomes another type first stays within the error that `weights.packed` states."""

import ctypes

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.engine.kernels.cpu import structs
from midstream.engine.kernels.cpu.repack import GROUP, PackedLinear, repack
from midstream.engine.models.decoder import Shapes
from midstream.engine.weights.load import expected_shapes
from midstream.engine.weights.packed import as_kind, load_packed, q4_k_as_q4_1
from midstream.engine.weights.stored import FLOAT_KINDS, Bytes, Floats, Stored
from tests.engine.models import tiny

KINDS = [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.F32, Kind.F16, Kind.BF16]
# Bytes of a block of 256, and where its fp16 scales lie.
K_BLOCKS = {Kind.Q4_K: (144, (0, 2)), Kind.Q5_K: (176, (0, 2)), Kind.Q6_K: (210, (208,))}
HALF_ULP = 2.0**-11
"""At most this much of a number is lost when it becomes fp16."""


def dequantised(library: ctypes.CDLL, linear: PackedLinear) -> Floats:
    """All rows as the library reads them, the padding too: [rows, columns]."""
    rows = np.full((linear.rows, linear.columns), np.nan, np.float32)
    struct = structs.Linear.of(linear)
    for index, row in enumerate(rows):
        library.ms_row(ctypes.byref(struct), index, ctypes.c_void_p(row.ctypes.data))
    return rows


def random_rows(kind: Kind, rows: int, columns: int, rng: np.random.Generator) -> Bytes:
    return np.ascontiguousarray(quantize(rng.standard_normal((rows, columns), np.float32), kind)).view(np.uint8)


def random_k_rows(kind: Kind, rows: int, num_blocks: int, rng: np.random.Generator) -> Bytes:
    """Any bytes are a valid block once its fp16 scales are numbers; those get both signs and several magnitudes."""
    size, scales_at = K_BLOCKS[kind]
    blocks = rng.integers(0, 256, (rows, num_blocks, size), np.uint8)
    for at in scales_at:
        scales = rng.uniform(0.5, 1, (rows, num_blocks, 1)) * 10.0 ** rng.integers(-3, 0, (rows, num_blocks, 1))
        signs = rng.choice([-1, 1], scales.shape) if kind is Kind.Q6_K else 1
        blocks[..., at : at + 2] = (scales * signs).astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, num_blocks * size)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 50), num_blocks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_repacking_keeps_every_value(library: ctypes.CDLL, kind: Kind, rows: int, num_blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = random_rows(kind, rows, 32 * num_blocks, rng)
    linear = repack(raw, kind, 32 * num_blocks)
    got = dequantised(library, linear)
    assert linear.rows % GROUP == 0
    assert linear.rows - rows < GROUP
    expected = dequantize(raw, kind)
    if kind is Kind.Q4_0 or kind is Kind.Q4_1:  # d * q + m: the library may round once where gguf rounds twice
        np.testing.assert_allclose(got[:rows], expected, rtol=0, atol=2**-22 * np.abs(expected).max())
    else:
        assert np.array_equal(got[:rows], expected)
    assert not got[rows:].any(), "rows that nobody asked for are no zeros"


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_of_repacked_rows_adds_their_biases(library: ctypes.CDLL, kind: Kind) -> None:
    rng = np.random.default_rng(3)
    bias = rng.standard_normal(21).astype(np.float32)
    linear = repack(random_rows(kind, 21, 64, rng), kind, 64, bias)
    assert linear.bias is not None
    assert np.array_equal(linear.bias, np.concatenate([bias, np.zeros(11, np.float32)]))
    x, y = np.zeros((5, 64), np.float32), np.full((5, 32), np.nan, np.float32)
    library.ms_linear(
        ctypes.byref(structs.Linear.of(linear)), ctypes.c_void_p(x.ctypes.data), 5, ctypes.c_void_p(y.ctypes.data)
    )
    assert np.array_equal(y, np.tile(linear.bias, (5, 1)))


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 20), num_blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_q4_k_becomes_q4_1_within_the_rounding_of_its_scales(rows: int, num_blocks: int, seed: int) -> None:
    raw = random_k_rows(Kind.Q4_K, rows, num_blocks, np.random.default_rng(seed))
    exact = dequantize(raw, Kind.Q4_K).reshape(-1, 32)
    as_q4_1 = q4_k_as_q4_1(raw)
    assert as_q4_1.shape == (rows, num_blocks * 8 * 20)
    got = dequantize(as_q4_1, Kind.Q4_1).reshape(-1, 32)
    scale, minimum = scales_of(as_q4_1)
    allowed = HALF_ULP * (15 * np.abs(scale) + np.abs(minimum)) * 1.001 + 2.0**-20  # an fp16 below 2^-14 has fewer bits
    assert (np.abs(got - exact).max(axis=1) <= allowed).all()


def scales_of(as_q4_1: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of each block of 32."""
    heads = as_q4_1.reshape(-1, 20)[:, :4].copy().view(np.float16).astype(np.float32)
    return heads[:, 0], heads[:, 1]


@pytest.mark.parametrize("kind", [Kind.Q5_K, Kind.Q6_K])
@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 20), num_blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_other_k_quants_become_q8_0_within_the_stated_error(kind: Kind, rows: int, num_blocks: int, seed: int) -> None:
    raw = random_k_rows(kind, rows, num_blocks, np.random.default_rng(seed))
    exact = dequantize(raw, kind)
    stored = Stored("a matrix", kind, exact.shape, raw)
    blocks = exact.reshape(-1, 32)
    got = dequantize(as_kind(stored, Kind.Q8_0), Kind.Q8_0).reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1)
    # Half a step, and what the scale itself loses as fp16.
    assert (np.abs(got - blocks).max(axis=1) <= largest / 254 * 1.001 + HALF_ULP * largest + 2.0**-18).all()


# --- whole layers ---


class Fake:
    """A model's tensors by name, as a file would hold them."""

    def __init__(self, tensors: dict[str, Stored]) -> None:
        self._tensors = tensors

    @property
    def shapes(self) -> Shapes:
        return {name: stored.shape for name, stored in self._tensors.items()}

    def kind(self, name: str) -> Kind:
        return self._tensors[name].kind

    def stored(self, name: str) -> Stored:
        return self._tensors[name]


CONFIG = tiny(
    num_layers=1,
    hidden_size=256,
    intermediate_size=96,
    head_dim=32,
    vocab_size=67,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
)


def fake_file(kinds: dict[str, Kind]) -> Fake:
    """Random tensors of CONFIG: Q8_0, or what `kinds` says by the linear's name; vectors are F32."""
    rng = np.random.default_rng(11)
    tensors = {}
    for name, shape in expected_shapes(CONFIG).items():
        kind = kinds.get(name.split(".")[-2], Kind.Q8_0) if len(shape) > 1 else Kind.F32
        if kind in K_BLOCKS:
            raw = random_k_rows(kind, shape[0], shape[1] // 256, rng)
        else:
            raw = random_rows(kind, shape[0] if len(shape) > 1 else 1, shape[-1], rng)
        tensors[name] = Stored(name, kind, shape, raw)
    return Fake(tensors)


def values(file: Fake, names: list[str]) -> Floats:
    return np.concatenate([file.stored(f"layers.0.{name}.weight").floats() for name in names])


QKV = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
Q4_1, Q8_0 = Kind.Q4_1.name, Kind.Q8_0.name
# A block's scale and minimum together can be four times what they add up to.
JOINS = {
    "one kind": ((Kind.Q4_0, Kind.Q4_0, Kind.Q4_0), Kind.Q4_0.name, 2.0**-20),
    "Q4_K, as Q4_1": ((Kind.Q4_K, Kind.Q4_K, Kind.Q4_K), Q4_1, 4 * HALF_ULP),
    "Q4_K beside Q4_1": ((Kind.Q4_K, Kind.Q4_1, Kind.Q4_1), Q4_1, 4 * HALF_ULP),
    "Q4_K beside Q6_K, as Q4_K_M has them": ((Kind.Q4_K, Kind.Q4_K, Kind.Q6_K), Q8_0, 1 / 254 + HALF_ULP),
    "Q5_K alone": ((Kind.Q5_K, Kind.Q5_K, Kind.Q5_K), Q8_0, 1 / 254 + HALF_ULP),
    "floats of two kinds": ((Kind.F16, Kind.BF16, Kind.F16), Kind.F32.name, 0.0),
    "floats beside integers": ((Kind.F32, Kind.Q8_0, Kind.Q4_0), Q8_0, 1 / 254 + HALF_ULP),
}


@pytest.mark.parametrize(("kinds", "joined", "loss"), JOINS.values(), ids=JOINS.keys())
def test_joined_matrices_keep_their_values_and_their_order(
    library: ctypes.CDLL, kinds: tuple[Kind, Kind, Kind], joined: str, loss: float
) -> None:
    """`loss`: the most that a value may be away, as a part of its block's largest."""
    file = fake_file(dict(zip(("q_proj", "k_proj", "v_proj"), kinds, strict=True)))
    linear = load_packed(file, CONFIG).layers[0].qkv
    assert linear.type.name == joined
    expected = values(file, QKV)
    got = dequantised(library, linear)[: len(expected)]
    largest = np.abs(expected.reshape(-1, 32)).max(axis=1, keepdims=True)
    assert (np.abs(got - expected).reshape(-1, 32) <= loss * 1.001 * largest + 2.0**-18 * (loss > 0)).all()


def test_every_matrix_takes_its_own_bias(library: ctypes.CDLL) -> None:
    file = fake_file({})
    packed = load_packed(file, CONFIG)
    layer = packed.layers[0]
    for linear, names in (
        (layer.qkv, QKV),
        (layer.o, ["self_attn.o_proj"]),
        (layer.gate_up, ["mlp.gate_proj", "mlp.up_proj"]),
        (layer.down, ["mlp.down_proj"]),
    ):
        expected = np.concatenate([file.stored(f"layers.0.{name}.bias").floats() for name in names])
        assert linear.bias is not None
        assert np.array_equal(linear.bias[: len(expected)], expected)
        assert np.array_equal(dequantised(library, linear)[: len(expected)], values(file, names))
    assert packed.embedding.bias is None
    assert packed.embedding.rows == 80, "67 rows of the vocabulary, and zeros up to a multiple of 16"


@pytest.mark.parametrize(("quantize_to", "inner", "ends"), [(Kind.Q8_0, Q8_0, Q8_0), (Kind.Q4_0, "Q4_0", Q8_0)])
def test_floats_are_quantised_where_asked_and_integers_are_left(quantize_to: Kind, inner: str, ends: str) -> None:
    kinds = dict.fromkeys(["q_proj", "k_proj", "v_proj", "embed_tokens", "lm_head"], Kind.F32)
    assert set(kinds.values()) <= FLOAT_KINDS
    packed = load_packed(fake_file(kinds | {"o_proj": Kind.Q4_1}), CONFIG, quantize_to)
    layer = packed.layers[0]
    assert [linear.type.name for linear in (layer.qkv, layer.o, layer.down)] == [inner, Q4_1, Q8_0]
    assert [linear.type.name for linear in (packed.embedding, packed.head)] == [ends, ends]
