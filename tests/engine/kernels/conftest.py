"""Owns the compiled library of the kernels' tests; where there is none, they cannot run and say why.

It comes twice: for all that this CPU has, and for the least that the kernels run on, which is what many users have.
"""

import ctypes
import platform

import pytest

from midstream.engine.kernels.cpu.compile import Unavailable, load_library
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.read_config import read_config
from midstream.modelfile.resolve import ModelFiles, resolve

LEAST = {"x86_64": "haswell", "aarch64": "armv8-a"}


@pytest.fixture(scope="session", params=["native", LEAST.get(platform.machine(), "none")])
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    loaded = load_library(request.param)
    if isinstance(loaded, Unavailable):
        pytest.skip(loaded.reason)
    return loaded


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    """The embedded model's."""
    return resolve()


@pytest.fixture(scope="module")
def config(files: ModelFiles) -> ModelConfig:
    return read_config(files)
