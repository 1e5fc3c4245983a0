"""The library is built once, and where it cannot be, one line says why and torch serves."""

from pathlib import Path

import pytest

from midstream.engine.kernels.cpu import compile as kernels
from midstream.engine.kernels.cpu.compile import Unavailable, flags_in, load_library


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


@pytest.mark.parametrize(
    ("machine", "flags", "reason"),
    [
        ("x86_64", {"sse2", "fma", "f16c"}, "this CPU lacks what the kernels need (avx2)"),
        ("x86_64", set(), "this CPU lacks what the kernels need (avx2, f16c, fma)"),
        ("aarch64", {"fp", "crc32"}, "this CPU lacks what the kernels need (asimd)"),
        ("riscv64", {"asimd", "avx2"}, "there are no kernels for riscv64"),
    ],
)
def test_a_cpu_that_they_cannot_run_on_is_told_why(
    monkeypatch: pytest.MonkeyPatch, machine: str, flags: set[str], reason: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(kernels, "cpu_flags", lambda: frozenset(flags))
    assert load_library() == Unavailable(reason)


X86 = """processor\t: 0
model name\t: A CPU
flags\t\t: fpu fma f16c avx2
vmx flags\t: vnmi ept
bugs\t\t: spectre_v1

processor\t: 1
flags\t\t: fpu
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm crc32 atomics fphp asimdhp asimddp
CPU implementer\t: 0x41
CPU part\t: 0xd0c

processor\t: 1
Features\t: fp
"""


@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        (X86, {"fpu", "fma", "f16c", "avx2"}),
        (ARM, {"fp", "asimd", "evtstrm", "crc32", "atomics", "fphp", "asimdhp", "asimddp"}),
        ("processor\t: 0\nisa\t: rv64imafdc\n", set()),
    ],
)
def test_the_first_cores_features_are_read(cpuinfo: str, flags: set[str]) -> None:
    assert flags_in(cpuinfo) == flags


@pytest.mark.parametrize(
    ("machine", "march", "option"),
    [
        ("x86_64", "native", "-march=native"),
        ("x86_64", "haswell", "-march=haswell"),
        ("aarch64", "native", "-mcpu=native"),
        ("aarch64", "armv8-a", "-march=armv8-a"),
    ],
)
def test_an_instruction_set_is_named_as_the_architectures_compilers_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, march: str, option: str
) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, 'echo "error: called with $*" >&2; exit 1'))
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(kernels, "cpu_obstacle", lambda: None)
    loaded = load_library(march)
    assert isinstance(loaded, Unavailable)
    assert f" {option} " in loaded.reason


def test_a_second_start_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_library()
    if isinstance(first, Unavailable):
        pytest.skip(first.reason)
    [built] = (tmp_path / "midstream").glob("kernels-*.so")
    made = built.stat().st_mtime_ns
    assert not isinstance(load_library(), Unavailable)
    assert built.stat().st_mtime_ns == made
