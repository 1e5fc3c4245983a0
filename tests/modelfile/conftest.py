"""Owns the embedded model's files for the tests of this room; each is opened once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.resolve import ModelFiles, resolve
from midstream.modelfile.tokenizer import Tokenizer


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the checksum cache of these tests out of the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def files() -> ModelFiles:
    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def gguf(files: ModelFiles) -> GgufFile:
    return GgufFile.open(files.path)


@pytest.fixture(scope="session")
def tokenizer(gguf: GgufFile) -> Tokenizer:
    return Tokenizer.from_gguf(gguf)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
