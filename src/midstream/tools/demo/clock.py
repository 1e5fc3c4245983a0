"""Owns `now`: the time in any zone of the IANA database. Reads the clock in one place."""

import difflib
from datetime import UTC, datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from midstream.tools.registry import tool

# Not strftime's %A, which follows the locale.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@tool(read_only=True, idempotent=True)
def now(timezone: str = "UTC") -> dict[str, Any]:
    """Get the current date and time in a time zone.

    Args:
        timezone: IANA name such as Asia/Shanghai, or its city such as Shanghai.
    """
    return time_in(timezone, datetime.now(UTC))


def time_in(timezone: str, moment: datetime) -> dict[str, Any]:
    """`moment` as the wall clock of `timezone` shows it. Raises ValueError for an unknown zone."""
    zone = zone_name(timezone)
    local = moment.astimezone(ZoneInfo(zone))
    iso = local.isoformat(timespec="seconds")
    return {"time": iso, "weekday": _WEEKDAYS[local.weekday()], "utc_offset": iso[19:], "timezone": zone}


def zone_name(text: str) -> str:
    """IANA name for a zone or for a city that is the last part of one zone's name only. Ignores case."""
    key = text.strip().replace(" ", "_").casefold()
    zones = _zones()
    if key in zones:
        return zones[key]
    by_city = _zones_by_city().get(key, ())
    if len(by_city) == 1:
        return by_city[0]
    if by_city:
        raise ValueError(f"timezone {text!r} could be {' or '.join(by_city)}; say which")
    raise ValueError(f"there is no timezone {text!r}{_suggestion(key)}; give an IANA name such as Asia/Shanghai")


def _suggestion(key: str) -> str:
    cities = _zones_by_city()
    candidates = {**{city: names[0] for city, names in cities.items()}, **_zones()}
    nearest = [candidates[name] for name in difflib.get_close_matches(key[:64], candidates, n=3, cutoff=0.7)]
    return f"; did you mean {' or '.join(dict.fromkeys(nearest))}?" if nearest else ""


@cache
def _zones() -> dict[str, str]:
    return {name.casefold(): name for name in sorted(available_timezones())}


@cache
def _zones_by_city() -> dict[str, tuple[str, ...]]:
    """Leaves out Etc/, whose signs are the reverse of what people mean: Etc/GMT+8 is 8 hours behind UTC."""
    cities: dict[str, tuple[str, ...]] = {}
    for name in sorted(available_timezones()):
        area, _, city = name.rpartition("/")
        if area and area != "Etc":
            cities[city.casefold()] = (*cities.get(city.casefold(), ()), name)
    return cities
