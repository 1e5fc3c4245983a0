"""Owns what many tests share: the embedded model's files, read once."""

import os
import signal

import pytest

from midstream.modelfile.resolve import resolve
from midstream.modelfile.tokenizer import Tokenizer

# Before torch is loaded, as the engine's process has it: its threads do not spin while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that starts the tests in the background hands them an ignored SIGINT: Ctrl-C is among what they test.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The embedded model's tokenizer."""
    return Tokenizer.load(resolve())
