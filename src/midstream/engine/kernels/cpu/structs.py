"""Owns the library's C structures as ctypes. Field for field what `weights.h` and `interface.h` declare."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from midstream.engine.kernels.cpu.repack import PackedLinear


def _fields(ctype: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, ctype) for name in names.split()]


class Config(ctypes.Structure):
    """`Config` of interface.h."""

    _fields_ = [
        *_fields(ctypes.c_int32, "num_layers hidden inner num_heads num_kv_heads head_dim vocab"),
        *_fields(ctypes.c_int32, "block_size max_positions activation"),
        *_fields(ctypes.c_float, "norm_eps embedding_scale attention_scale"),
    ]


class Linear(ctypes.Structure):
    """`Linear` of weights.h."""

    _fields_ = [*_fields(ctypes.c_void_p, "packed bias"), *_fields(ctypes.c_int32, "type rows columns")]

    @classmethod
    def of(cls, linear: PackedLinear) -> "Linear":
        """Points into `linear`, which must outlive it."""
        return cls(pointer(linear.packed), pointer(linear.bias), linear.type, linear.rows, linear.columns)


class Layer(ctypes.Structure):
    """`Layer` of interface.h."""

    _fields_ = [
        *_fields(ctypes.c_void_p, "input_norm q_norm k_norm attended_norm post_norm fed_norm cosines sines"),
        *_fields(Linear, "qkv o gate_up down"),
        ("sliding_window", ctypes.c_int32),
    ]


class Ends(ctypes.Structure):
    """`Ends` of interface.h."""

    _fields_ = [
        ("final_norm", ctypes.c_void_p),
        *_fields(Linear, "embedding head"),
        ("kv", ctypes.c_void_p),
    ]


class Batch(ctypes.Structure):
    """`Batch` of interface.h."""

    _fields_ = [
        *_fields(ctypes.c_int32, "num_tokens num_rows num_samples max_blocks"),
        *_fields(ctypes.c_void_p, "token_ids first_token start block_tables samples logits part_ns"),
    ]


def pointer(array: "npt.NDArray[np.generic] | None") -> int | None:
    """The address of the array's first byte; null for None. The caller keeps the array."""
    return None if array is None else array.ctypes.data
