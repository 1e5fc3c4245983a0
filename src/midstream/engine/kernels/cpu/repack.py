"""Owns the layout of weights for the kernels: GGUF's own blocks, 8 rows side by side. Loses nothing, rounds nothing.

The byte layout is drawn in `linear.h`.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

GROUP = 8
BLOCK = 32

Bytes = npt.NDArray[np.uint8]


class WeightType(IntEnum):
    """The numbers of `linear.h`."""

    Q4_0 = 0
    Q4_1 = 1
    Q8_0 = 2


@dataclass(frozen=True)
class _Format:
    type: WeightType
    num_halves: int
    """fp16 numbers in front of a block: the scale, and Q4_1's minimum."""
    num_bytes: int
    """Bytes of a block in GGUF."""


FORMATS = {
    GGMLQuantizationType.Q4_0: _Format(WeightType.Q4_0, 1, 18),
    GGMLQuantizationType.Q4_1: _Format(WeightType.Q4_1, 2, 20),
    GGMLQuantizationType.Q8_0: _Format(WeightType.Q8_0, 1, 34),
}


@dataclass(frozen=True)
class PackedLinear:
    """One matrix as the kernels read it."""

    packed: Bytes
    type: WeightType
    rows: int
    columns: int


def repack(raw: Bytes, kind: GGMLQuantizationType, rows: int, columns: int) -> PackedLinear:
    """Lay out a matrix [rows, columns] whose GGUF bytes are `raw`; rows are filled up to a multiple of 8 with zeros."""
    form = FORMATS[kind]
    num_blocks = columns // BLOCK
    blocks = raw.reshape(rows, num_blocks, form.num_bytes)
    padding = -rows % GROUP
    if padding:
        blocks = np.concatenate([blocks, np.zeros((padding, num_blocks, form.num_bytes), np.uint8)])
    grouped = blocks.reshape(-1, GROUP, num_blocks, form.num_bytes).swapaxes(1, 2)  # [groups, blocks, 8, bytes]
    head = 2 * form.num_halves
    halves = grouped[..., :head].reshape(*grouped.shape[:3], form.num_halves, 2).swapaxes(2, 3)  # [.., halves, 8, 2]
    words = grouped[..., head:].reshape(*grouped.shape[:3], -1, 4).swapaxes(2, 3)  # [groups, blocks, words, 8, 4]
    packed = np.concatenate(
        [part.reshape(*grouped.shape[:2], -1) for part in (halves, words)], axis=-1
    )  # [groups, blocks, bytes]
    return PackedLinear(np.ascontiguousarray(packed).reshape(-1), form.type, rows + padding, columns)


def to_halves(raw: Bytes, num_heads: int) -> Bytes:
    """Undo llama.cpp's row order of q and k: the rotary pairs (0, 1), (2, 3) … of a head become its two halves."""
    rows = raw.shape[0]
    return raw.reshape(num_heads, rows // num_heads // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)
