"""Owns what many tests share: the embedded model's files, read once."""

import pytest

from midstream.modelfile.resolve import resolve
from midstream.modelfile.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The embedded model's tokenizer."""
    return Tokenizer.load(resolve())
