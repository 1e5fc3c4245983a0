"""The library is built once, and where it cannot be, one line says why and torch serves."""

from pathlib import Path

import pytest

from midstream.engine.kernels.cpu import compile as kernels
from midstream.engine.kernels.cpu.compile import Unavailable, load_library


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def fake_compiler(tmp_path: Path, script: str) -> str:
    path = tmp_path / "fake-c++"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_missing_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    loaded = load_library()
    assert isinstance(loaded, Unavailable)
    assert "apt install g++" in loaded.reason


def test_a_broken_compiler_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "echo 'x.cpp:1: error: it is broken' >&2; exit 1"))
    loaded = load_library()
    assert isinstance(loaded, Unavailable)
    assert "it is broken" in loaded.reason
    assert "\n" not in loaded.reason
    assert not list((tmp_path / "midstream").iterdir()), "a failed build left something behind"


def test_a_cpu_without_avx2_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "cpu_flags", lambda: frozenset({"sse2", "fma", "f16c"}))
    loaded = load_library()
    assert isinstance(loaded, Unavailable)
    assert "avx2" in loaded.reason


def test_a_second_start_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_library()
    if isinstance(first, Unavailable):
        pytest.skip(first.reason)
    [built] = (tmp_path / "midstream").glob("kernels-*.so")
    made = built.stat().st_mtime_ns
    assert not isinstance(load_library(), Unavailable)
    assert built.stat().st_mtime_ns == made
