"""Owns the tests of the database file: built whole, once, by anyone, and never written again."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from midstream.errors import ConfigError
from midstream.tools.demo import airport_data, database
from midstream.tools.demo.departures import departures


def test_it_holds_exactly_the_rows(departures_file: Path) -> None:
    connection = sqlite3.connect(departures_file)
    stored = connection.execute("SELECT * FROM departures ORDER BY origin, date, scheduled, flight").fetchall()
    connection.close()
    assert stored == [tuple(row) for row in departures()]


def test_it_stays_small(departures_file: Path) -> None:
    assert departures_file.stat().st_size < 40e6


def test_a_second_call_does_not_build(departures_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(departures_file.parent.parent))
    monkeypatch.setattr(database, "build", lambda path: pytest.fail("built again"))
    assert database.ensure_database() == departures_file


def test_it_is_opened_for_reading_only(departures_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(departures_file.parent.parent))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        database.read("DELETE FROM departures", {})


def test_two_processes_may_build_at_once(tmp_path: Path) -> None:
    program = "from midstream.tools.demo import database as d; print(len(d.read('SELECT 1 FROM departures', {})))"
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))}
    builders = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) for _ in "ab"
    ]
    answers = [builder.communicate(timeout=60)[0] for builder in builders]
    assert [int(answer) for answer in answers] == [sum(1 for _ in departures())] * 2
    [only] = (tmp_path / "midstream").iterdir()
    assert only.name == database.database_path({"XDG_CACHE_HOME": str(tmp_path)}).name


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise RuntimeError("stop")

    monkeypatch.setattr(database, "departures", broken)
    with pytest.raises(RuntimeError, match="stop"):
        database.build(tmp_path / "x.sqlite3")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        database.build(tmp_path / "file" / "x.sqlite3")


def test_the_cache_folder_follows_the_xdg_rule() -> None:
    assert database.database_path({"XDG_CACHE_HOME": "/var/x"}).parent == Path("/var/x/midstream")
    for ignored in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert database.database_path(ignored).parent == Path.home() / ".cache" / "midstream"


def test_no_home_folder_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        database.database_path({})


def test_the_script_builds_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        database,
        "departures",
        lambda: iter([("PVG", "2026-01-01", "07:00", "Y1", "Y", "HKG", "on time", 0, "A1")]),
    )
    airport_data.main()
    output = capsys.readouterr().out
    assert str(tmp_path) in output
    assert "rows    1\n" in output
