"""Owns the layout of weights for the kernels: a file's own blocks or floats, 16 rows side by side. Rounds nothing.

The byte layout is drawn in `weights.h`.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

GROUP = 16
BLOCK = 32

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class WeightType(IntEnum):
    """The numbers of `weights.h`."""

    Q4_0 = 0
    Q4_1 = 1
    Q8_0 = 2
    F32 = 3
    F16 = 4
    BF16 = 5


@dataclass(frozen=True)
class _BlockFormat:
    type: WeightType
    num_halves: int
    """fp16 numbers in front of a block: the scale, and Q4_1's minimum."""
    num_bytes: int
    """Bytes of a block in GGUF."""


_BLOCK_FORMATS = {
    GGMLQuantizationType.Q4_0: _BlockFormat(WeightType.Q4_0, 1, 18),
    GGMLQuantizationType.Q4_1: _BlockFormat(WeightType.Q4_1, 2, 20),
    GGMLQuantizationType.Q8_0: _BlockFormat(WeightType.Q8_0, 1, 34),
}
_FLOAT_TYPES = {
    GGMLQuantizationType.F32: WeightType.F32,
    GGMLQuantizationType.F16: WeightType.F16,
    GGMLQuantizationType.BF16: WeightType.BF16,
}
PACKABLE = _BLOCK_FORMATS.keys() | _FLOAT_TYPES.keys()


@dataclass(frozen=True)
class PackedLinear:
    """One matrix as the kernels read it; `rows` is a multiple of 16."""

    packed: Bytes
    type: WeightType
    rows: int
    columns: int
    bias: Floats | None = None  # [rows]


def repack(raw: Bytes, kind: GGMLQuantizationType, columns: int, bias: Floats | None = None) -> PackedLinear:
    """Lay out a matrix whose bytes in a file are `raw` [rows, bytes]; zero rows fill up a multiple of 16.

    `kind` is one of PACKABLE, `columns` a multiple of 32; bias [rows].
    """
    padding = -raw.shape[0] % GROUP
    if padding:
        raw = np.concatenate([raw, np.zeros((padding, raw.shape[1]), np.uint8)])
        bias = None if bias is None else np.concatenate([bias, np.zeros(padding, np.float32)])
    if kind in _FLOAT_TYPES:
        packed = _side_by_side(raw.reshape(-1, GROUP, columns, raw.shape[1] // columns))
        return PackedLinear(packed.reshape(-1), _FLOAT_TYPES[kind], raw.shape[0], columns, bias)
    form = _BLOCK_FORMATS[kind]
    return PackedLinear(_pack_blocks(raw, form).reshape(-1), form.type, raw.shape[0], columns, bias)


def _side_by_side(rows: Bytes) -> Bytes:
    """[groups, 16, units, bytes] to [groups, units, 16, bytes]."""
    return np.ascontiguousarray(rows.swapaxes(1, 2))


def _pack_blocks(raw: Bytes, form: _BlockFormat) -> Bytes:
    grouped = raw.reshape(raw.shape[0] // GROUP, GROUP, -1, form.num_bytes).swapaxes(
        1, 2
    )  # [groups, blocks, 16, bytes]
    head = 2 * form.num_halves
    halves = grouped[..., :head].reshape(*grouped.shape[:3], form.num_halves, 2).swapaxes(2, 3)  # [.., halves, 16, 2]
    words = grouped[..., head:].reshape(*grouped.shape[:3], -1, 4).swapaxes(2, 3)  # [groups, blocks, words, 16, 4]
    return np.concatenate(
        [part.reshape(*grouped.shape[:2], -1) for part in (halves, words)], axis=-1
    )  # [groups, blocks, bytes]
