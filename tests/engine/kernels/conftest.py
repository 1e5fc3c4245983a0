"""Owns the compiled library of the kernels' tests; where there is none, they cannot run and say why."""

import ctypes

import pytest

from midstream.engine.kernels.cpu.compile import Unavailable, load_library


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    loaded = load_library()
    if isinstance(loaded, Unavailable):
        pytest.skip(loaded.reason)
    return loaded
