"""Owns the tools that answer from the departures database. Writes nothing.

Results are small and the value that is usually asked for comes early, so that a small model can copy it.
"""

import difflib
from datetime import date
from typing import Annotated, Any

from pydantic import Field

from midstream.tools.demo import database
from midstream.tools.demo.departures import AIRPORTS, FIRST_DAY, LAST_DAY
from midstream.tools.registry import tool

_CODES = ", ".join(airport.code for airport in AIRPORTS)

_STATUS = """
SELECT
    count(*) AS departures,
    sum(status = 'on time') AS on_time,
    sum(status = 'delayed') AS delayed,
    sum(status = 'cancelled') AS cancelled,
    round(avg(delay_minutes), 1) AS average_delay_minutes,
    max(delay_minutes) AS longest_delay_minutes
FROM departures WHERE origin = :origin AND date = :date
"""
_SEARCH = """
SELECT flight, airline, scheduled, status, delay_minutes, gate, count(*) OVER () AS total
FROM departures WHERE origin = :origin AND destination = :destination AND date = :date
ORDER BY scheduled, flight LIMIT :limit
"""
# A cancelled flight did not leave on time.
_RATE = """
SELECT count(*) AS departures, round(100.0 * avg(status = 'on time'), 1) AS on_time_rate_percent
FROM departures WHERE origin = :origin
"""


@tool(read_only=True, idempotent=True)
def flight_status(airport: str, date: date) -> dict[str, Any]:
    """Get how the departures of an airport went on a day: on time, delayed, cancelled, and the delays.

    Args:
        airport: Airport code such as PVG.
        date: Day as YYYY-MM-DD.
    """
    origin, day = airport_code(airport), _day(date)
    [row] = database.read(_STATUS, {"origin": origin, "date": day})
    return {"airport": origin, "date": day, **row}


@tool(read_only=True, idempotent=True)
def flight_search(
    origin: str, destination: str, date: date, limit: Annotated[int, Field(ge=1, le=20)] = 5
) -> dict[str, Any]:
    """Find the flights from one airport to another on a day, the earliest first.

    Args:
        origin: Code of the airport of departure such as PVG.
        destination: Code of the airport of arrival such as HKG.
        date: Day as YYYY-MM-DD.
        limit: Most flights to return.
    """
    start, end, day = airport_code(origin), airport_code(destination), _day(date)
    if start == end:
        raise ValueError(f"origin and destination are both {start}; give two airports")
    rows = database.read(_SEARCH, {"origin": start, "destination": end, "date": day, "limit": limit})
    total = rows[0]["total"] if rows else 0
    flights = [{key: row[key] for key in row.keys() if key != "total"} for row in rows]  # noqa: SIM118
    return {"total": total, "flights": flights}


@tool(read_only=True, idempotent=True)
def on_time_rate(airport: str) -> dict[str, Any]:
    """Get the share of an airport's departures that left on time in the year, in percent.

    Args:
        airport: Airport code such as PVG.
    """
    origin = airport_code(airport)
    [row] = database.read(_RATE, {"origin": origin})
    return {
        "airport": origin,
        "on_time_rate_percent": row["on_time_rate_percent"],
        "period": f"{FIRST_DAY:%Y}",
        "departures": row["departures"],
    }


def airport_code(text: str) -> str:
    """Code for a code, a city with one airport or an airport's name, in any case; else ValueError."""
    wanted = text.strip().casefold()
    for airport in AIRPORTS:
        if wanted == airport.code.casefold():
            return airport.code
    found = [a.code for a in AIRPORTS if wanted in (a.city.casefold(), a.name.casefold())]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{text} has several airports; give one of {', '.join(found)}")
    words = {word.casefold(): a.code for a in AIRPORTS for word in (a.code, a.city, a.name)}
    nearest = [words[word] for word in difflib.get_close_matches(wanted[:64], words, n=1, cutoff=0.75)]
    suggestion = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ValueError(f"there is no airport {text[:64]!r}{suggestion}; there are: {_CODES}")


def _day(day: date) -> str:
    if not FIRST_DAY <= day <= LAST_DAY:
        raise ValueError(f"there are no flights on {day}; the data covers {FIRST_DAY} to {LAST_DAY}")
    return day.isoformat()
