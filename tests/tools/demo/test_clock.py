"""Owns the tests of `now`: zones, summer time, names of cities."""

from datetime import UTC, datetime

import pytest

from midstream.tools.demo import now
from midstream.tools.demo.clock import time_in, zone_name

WINTER = datetime(2026, 1, 15, 23, 30, 5, tzinfo=UTC)
SUMMER = datetime(2026, 7, 15, 23, 30, 5, tzinfo=UTC)


def test_the_answer_has_time_weekday_offset_and_zone() -> None:
    assert time_in("Asia/Shanghai", WINTER) == {
        "time": "2026-01-16T07:30:05+08:00",
        "weekday": "Friday",
        "utc_offset": "+08:00",
        "timezone": "Asia/Shanghai",
    }


@pytest.mark.parametrize(("moment", "offset"), [(WINTER, "+01:00"), (SUMMER, "+02:00")], ids=["winter", "summer"])
def test_summer_time_is_followed(moment: datetime, offset: str) -> None:
    assert time_in("Europe/Berlin", moment)["utc_offset"] == offset


def test_the_hour_that_clocks_repeat_has_two_offsets() -> None:
    first = time_in("America/New_York", datetime(2026, 11, 1, 5, 30, tzinfo=UTC))
    second = time_in("America/New_York", datetime(2026, 11, 1, 6, 30, tzinfo=UTC))
    assert (first["time"], second["time"]) == ("2026-11-01T01:30:00-04:00", "2026-11-01T01:30:00-05:00")


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("UTC", "UTC"),
        ("utc", "UTC"),
        ("asia/shanghai", "Asia/Shanghai"),
        ("Shanghai", "Asia/Shanghai"),
        (" new york ", "America/New_York"),
        ("Kolkata", "Asia/Kolkata"),
        ("Etc/GMT+8", "Etc/GMT+8"),
    ],
)
def test_zones_are_known_by_name_and_by_city(text: str, zone: str) -> None:
    assert zone_name(text) == zone


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Shangai", "no timezone 'Shangai'; did you mean Asia/Shanghai"),
        ("Europe/Pariss", "did you mean Europe/Paris"),
        ("Louisville", "America/Kentucky/Louisville or America/Louisville"),
        ("GMT+8", "no timezone"),  # Etc/GMT+8 is the opposite of what is meant
        ("../../etc/passwd", "no timezone"),
        ("", "no timezone"),
        ("x" * 10_000, "no timezone"),
    ],
)
def test_an_unknown_zone_says_what_is_near(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        zone_name(text)


def test_now_reads_the_clock_in_utc_by_default() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    answer = now()
    assert answer["timezone"] == "UTC"
    assert before <= datetime.fromisoformat(answer["time"]) <= datetime.now(UTC)
