"""Owns a short check that the compiled kernels compute what they should on this CPU."""

import ctypes

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from midstream.engine.kernels.cpu import structs
from midstream.engine.kernels.cpu.repack import repack

_TOLERANCE = 0.02
"""Of a sum of 256 products of normal numbers, whose activations are rounded to 8 bits."""


def check_kernels(library: ctypes.CDLL) -> str | None:
    """What is wrong, in words; None when a small product comes out as numpy has it. Takes milliseconds."""
    rng = np.random.default_rng(0)
    weights, x = rng.standard_normal((16, 256), np.float32), rng.standard_normal((3, 256), np.float32)
    for kind in (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0):
        raw = quantize(weights, kind)
        linear = repack(raw, kind, 256)
        y = np.zeros((3, 16), np.float32)
        library.ms_linear(
            ctypes.byref(structs.Linear.of(linear)), ctypes.c_void_p(x.ctypes.data), 3, ctypes.c_void_p(y.ctypes.data)
        )
        expected = x @ dequantize(raw, kind).T
        worst = float(np.abs(y - expected).max()) / 256**0.5
        if not worst < _TOLERANCE:
            return f"a {kind.name} product is {worst:.3f} off, relative to its size; {_TOLERANCE} is allowed"
    return None
