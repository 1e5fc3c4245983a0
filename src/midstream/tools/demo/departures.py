"""Owns the invented timetable: a year of departures, the same rows on every machine. Stores nothing.

Airports are real; airlines, flights and delays are made up. Only integers and `Random(seed).random()` are
used, which Python promises to keep: the rows do not change with its version or the platform.
"""

from collections.abc import Iterator
from datetime import date, timedelta
from random import Random
from typing import NamedTuple

FIRST_DAY = date(2026, 1, 1)
LAST_DAY = date(2026, 12, 31)
SEED = 20260101
ON_TIME_UNDER_MINUTES = 15
"""A departure that leaves less than this after schedule is on time, as airlines count."""


class Airport(NamedTuple):
    code: str
    city: str
    name: str
    airline_code: str
    airline: str
    """The airline that is based there."""
    usual_weather: int
    """0 to 100: how often bad weather holds departures up."""


AIRPORTS = (
    Airport("PVG", "Shanghai", "Pudong", "Y2", "Yangtze Air", 34),
    Airport("SHA", "Shanghai", "Hongqiao", "Q5", "Bund Airlines", 30),
    Airport("PEK", "Beijing", "Capital", "N3", "Northern Gate", 40),
    Airport("HKG", "Hong Kong", "Hong Kong", "H6", "Harbour Pacific", 26),
    Airport("NRT", "Tokyo", "Narita", "K4", "Kanto Airways", 16),
    Airport("SIN", "Singapore", "Changi", "S8", "Straits Air", 12),
    Airport("FRA", "Frankfurt", "Frankfurt", "M7", "Main Aviation", 32),
    Airport("LHR", "London", "Heathrow", "T2", "Thames Airways", 36),
    Airport("CDG", "Paris", "Charles de Gaulle", "L9", "Lutece Air", 31),
    Airport("JFK", "New York", "John F. Kennedy", "A5", "Hudson Atlantic", 42),
    Airport("LAX", "Los Angeles", "Los Angeles", "P3", "Pacific Crest", 20),
    Airport("DXB", "Dubai", "Dubai", "G6", "Gulf Meridian", 10),
)

# Flights a day each way between two airports; the table is symmetric.
#       PVG SHA PEK HKG NRT SIN FRA LHR CDG JFK LAX DXB
_DAILY_FLIGHTS = """
    PVG   0   0   9   8   8   6   4   4   4   3   4   4
    SHA   0   0  18  10   8   6   0   0   0   0   0   0
    PEK   9  18   0   8   5   4   3   3   3   2   2   3
    HKG   8  10   8   0   7   7   2   4   2   2   3   4
    NRT   8   8   5   7   0   6   3   3   3   3   5   2
    SIN   6   6   4   7   6   0   3   5   3   1   2   6
    FRA   4   0   3   2   3   3   0  11   8   5   3   4
    LHR   4   0   3   4   3   5  11   0   8   9   5   8
    CDG   4   0   3   2   3   3   8   8   0   7   4   4
    JFK   3   0   2   2   3   1   5   9   7   0  13   3
    LAX   4   0   2   3   5   2   3   5   4  13   0   2
    DXB   4   0   3   4   2   6   4   8   4   3   2   0
"""


class Service(NamedTuple):
    """A flight number that leaves at the same time on each of its days."""

    scheduled: str
    flight: str
    airline: str
    destination: str
    gate: str
    day_off: int | None
    """Weekday (Monday is 0) on which it does not operate."""


class Departure(NamedTuple):
    origin: str
    date: str
    scheduled: str
    """Local time at the origin, HH:MM."""
    flight: str
    airline: str
    destination: str
    status: str
    """`on time`, `delayed` or `cancelled`."""
    delay_minutes: int | None
    """None when cancelled."""
    gate: str


def departures() -> Iterator[Departure]:
    """Every departure of the year by origin, date, time and flight. About 210,000 rows in about a second."""
    for number, airport in sorted(enumerate(AIRPORTS), key=lambda item: item[1].code):
        random = Random(SEED + number)  # noqa: S311
        services = timetable(airport, random)
        for offset in range((LAST_DAY - FIRST_DAY).days + 1):
            yield from _day(airport, services, FIRST_DAY + timedelta(days=offset), random)


def timetable(airport: Airport, random: Random) -> list[Service]:
    """The services of one airport in the order of a day's departures."""
    services: list[Service] = []
    for destination, count in _daily_flights()[airport.code].items():
        far_end = next(other for other in AIRPORTS if other.code == destination)
        for turn in range(count):
            # Both ends' airlines fly a route; minutes are spread over the day from 06:00 and end in 0 or 5.
            carrier = (airport, far_end)[turn % 2]
            slot = 360 + (turn * 1080 + int(random.random() * 1080)) // count // 5 * 5
            number = 100 * (1 + AIRPORTS.index(airport)) + len(services)
            gate = f"{'ABCDE'[int(random.random() * 5)]}{1 + int(random.random() * 30)}"
            day_off = int(random.random() * 7) if random.random() < 0.25 else None
            time = f"{slot // 60:02}:{slot % 60:02}"
            flight = f"{carrier.airline_code}{number}"
            services.append(Service(time, flight, carrier.airline, destination, gate, day_off))
    return sorted(services)


def _daily_flights() -> dict[str, dict[str, int]]:
    codes = [airport.code for airport in AIRPORTS]
    lines = [line.split() for line in _DAILY_FLIGHTS.split("\n") if line]
    return {line[0]: dict(zip(codes, map(int, line[1:]), strict=True)) for line in lines if line}


def _day(airport: Airport, services: list[Service], day: date, random: Random) -> Iterator[Departure]:
    weather = int(random.random() * random.random() * (60 + 2 * airport.usual_weather))
    text = day.isoformat()
    for service in services:
        if service.day_off == day.weekday():
            continue
        delay = _delay(weather, random)
        yield Departure(
            origin=airport.code,
            date=text,
            scheduled=service.scheduled,
            flight=service.flight,
            airline=service.airline,
            destination=service.destination,
            status=_status(delay),
            delay_minutes=delay,
            gate=service.gate,
        )


def _delay(weather: int, random: Random) -> int | None:
    """Minutes late, or None for a cancelled flight: likelier the worse the weather (0 to 144)."""
    chance = int(random.random() * 1000)
    size = random.random()
    if chance < 5 + weather * weather // 160:
        return None
    if chance < 90 + weather * 4:
        return ON_TIME_UNDER_MINUTES + int(size * size * size * (60 + 2 * weather))
    return int(size * ON_TIME_UNDER_MINUTES)


def _status(delay_minutes: int | None) -> str:
    if delay_minutes is None:
        return "cancelled"
    return "on time" if delay_minutes < ON_TIME_UNDER_MINUTES else "delayed"
