"""Owns the tests of the flight tools: their answers against SQL of the tests' own, and bad input."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import ToolArgumentsInvalid
from midstream.tools import Registry
from midstream.tools.demo import flight_search, flight_status, on_time_rate
from midstream.tools.demo.flights import airport_code

DAY = date(2026, 6, 20)


@pytest.fixture(autouse=True)
def sql(departures_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(departures_file.parent.parent))
    connection = sqlite3.connect(departures_file)
    yield connection
    connection.close()


def call(name: str, **arguments: Any) -> Any:
    tool = Registry.load(["midstream.tools.demo"]).by_name[name]
    return tool.function(**tool.call_arguments(arguments))


@pytest.mark.parametrize("airport", ["PVG", "LAX", "DXB"])
def test_flight_status_counts_what_is_in_the_table(airport: str, sql: sqlite3.Connection) -> None:
    rows = sql.execute(
        "SELECT status, delay_minutes FROM departures WHERE origin = ? AND date = '2026-06-20'", (airport,)
    ).fetchall()
    statuses = [status for status, _ in rows]
    delays = [delay for _, delay in rows if delay is not None]
    assert flight_status(airport, DAY) == {
        "airport": airport,
        "date": "2026-06-20",
        "departures": len(rows),
        "on_time": statuses.count("on time"),
        "delayed": statuses.count("delayed"),
        "cancelled": statuses.count("cancelled"),
        "average_delay_minutes": pytest.approx(sum(delays) / len(delays), abs=0.051),
        "longest_delay_minutes": max(delays),
    }


def test_flight_status_of_the_documented_example() -> None:
    assert call("flight_status", airport="PVG", date="2026-12-02") == {
        "airport": "PVG",
        "date": "2026-12-02",
        "departures": 54,
        "on_time": 29,
        "delayed": 24,
        "cancelled": 1,
        "average_delay_minutes": 35.5,
        "longest_delay_minutes": 185,
    }


def test_flight_search_gives_the_earliest_first(sql: sqlite3.Connection) -> None:
    rows = sql.execute(
        "SELECT flight, scheduled FROM departures WHERE date = '2026-06-20' AND origin = 'PVG' AND destination = 'HKG'"
    ).fetchall()
    found = flight_search("PVG", "HKG", DAY, 3)
    assert found["total"] == len(rows)
    by_time = sorted((scheduled, flight) for flight, scheduled in rows)
    assert [(flight["scheduled"], flight["flight"]) for flight in found["flights"]] == by_time[:3]
    assert set(found["flights"][0]) == {"flight", "airline", "scheduled", "status", "delay_minutes", "gate"}


def test_flight_search_without_a_route_finds_nothing() -> None:
    assert flight_search("SHA", "LAX", DAY) == {"total": 0, "flights": []}


def test_on_time_rate_is_the_share_of_all_departures(sql: sqlite3.Connection) -> None:
    statuses = sql.execute("SELECT status FROM departures WHERE origin = 'PVG'").fetchall()
    share = statuses.count(("on time",)) / len(statuses) * 100
    answer = on_time_rate("PVG")
    assert answer == {
        "airport": "PVG",
        "on_time_rate_percent": pytest.approx(share, abs=0.051),
        "period": "2026",
        "departures": len(statuses),
    }


def test_results_are_short_enough_for_a_small_model() -> None:
    for answer in (flight_status("PVG", DAY), on_time_rate("PVG"), flight_search("PVG", "PEK", DAY, 1)):
        assert len(json.dumps(answer)) < 220


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("PVG", "PVG"),
        (" pvg ", "PVG"),
        ("Beijing", "PEK"),
        ("hong kong", "HKG"),
        ("Heathrow", "LHR"),
        ("Pudong", "PVG"),
    ],
)
def test_airports_are_known_by_code_city_and_name(text: str, code: str) -> None:
    assert airport_code(text) == code


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Shanghai", "Shanghai has several airports; give one of PVG, SHA"),
        ("PVGG", "no airport 'PVGG'; did you mean PVG"),
        ("Lodnon", "did you mean LHR"),
        ("XYZ", "there are: PVG, SHA, PEK, HKG, NRT, SIN, FRA, LHR, CDG, JFK, LAX, DXB"),
        ("'; DROP TABLE departures; --", "no airport"),
        ("", "no airport ''"),
        ("x" * 10_000, "no airport"),
    ],
)
def test_an_airport_that_is_not_one_says_what_there_is(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        airport_code(text)


def test_days_outside_the_year_name_the_range() -> None:
    for day in (date(2025, 12, 31), date(2027, 1, 1), date(2024, 6, 20)):
        with pytest.raises(ValueError, match=f"{day}; the data covers 2026-01-01 to 2026-12-31"):
            flight_status("PVG", day)
    assert flight_status("PVG", date(2026, 1, 1))["departures"] > 0
    assert flight_status("PVG", date(2026, 12, 31))["departures"] > 0


def test_origin_and_destination_must_differ() -> None:
    with pytest.raises(ValueError, match="both PVG"):
        flight_search("PVG", "pvg", DAY)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("on_time_rate", {"airport": "PVG", "month": 12}, "there is no argument month"),
        (
            "flight_search",
            {"origin": "PVG", "destination": "HKG", "date": "2026-06-20", "limit": 0},
            "limit is 0",
        ),
        ("flight_status", {"airport": "PVG", "date": "tomorrow"}, 'date is "tomorrow"'),
        ("flight_status", {"airport": "PVG"}, "date is missing"),
    ],
)
def test_arguments_are_checked_before_the_tool_runs(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolArgumentsInvalid, match=words):
        call(name, **arguments)


def test_every_demo_tool_is_safe_to_start_early() -> None:
    for spec in Registry.load(["midstream.tools.demo"]).specs():
        assert spec.annotations.read_only
        assert spec.annotations.idempotent
        assert spec.description
        assert all(parameter["description"] for parameter in spec.parameters["properties"].values())
