"""Owns the tests of the invented year: the same rows everywhere, and plausible ones."""

import hashlib
from collections import Counter

import pytest

from midstream.tools.demo.database import ROWS_DIGEST
from midstream.tools.demo.departures import AIRPORTS, Departure, departures


@pytest.fixture(scope="module")
def rows() -> list[Departure]:
    return list(departures())


def test_the_rows_are_the_same_on_every_machine(rows: list[Departure]) -> None:
    # They changed on purpose? Then ROWS_DIGEST follows them, so that caches get a new file.
    text = "".join(f"{tuple(row)!r}\n" for row in rows)
    assert hashlib.sha256(text.encode()).hexdigest() == ROWS_DIGEST


def test_every_airport_has_38_to_60_departures_a_day(rows: list[Departure]) -> None:
    days = Counter((row.origin, row.date) for row in rows)
    assert len(days) == 12 * 365
    assert min(days.values()) >= 38
    assert max(days.values()) <= 60


def test_rows_are_in_the_order_of_the_table(rows: list[Departure]) -> None:
    assert rows == sorted(rows, key=lambda row: row[:4])


def test_a_flight_number_flies_once_a_day(rows: list[Departure]) -> None:
    assert len({(row.flight, row.date) for row in rows}) == len(rows)


def test_no_flight_stays_in_its_city(rows: list[Departure]) -> None:
    cities = {airport.code: airport.city for airport in AIRPORTS}
    assert all(cities[row.origin] != cities[row.destination] for row in rows)


def test_the_status_follows_from_the_delay(rows: list[Departure]) -> None:
    for row in rows:
        if row.delay_minutes is None:
            assert row.status == "cancelled"
        else:
            assert row.status == ("on time" if 0 <= row.delay_minutes < 15 else "delayed")
