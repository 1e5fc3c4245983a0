"""Owns what many tests share: the embedded model's files, read once."""

import os
import signal

import pytest

from midstream.modelfile.resolve import resolve
from midstream.modelfile.tokenizer import Tokenizer

# Before torch is loaded, as the engine's process has it: its threads do not spin while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

# A shell that starts the tests in the background hands them an ignored SIGINT: Ctrl-C is among what they test.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a GPU need one; who has none is told so once a test."""
    if any(item.get_closest_marker("gpu") for item in items) and not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The embedded model's tokenizer."""
    return Tokenizer.load(resolve())
