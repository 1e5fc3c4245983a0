"""Owns the one database that the demo tests share: it is built once, outside the user's cache folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.tools.demo import ensure_database


@pytest.fixture(scope="session")
def departures_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield ensure_database()
