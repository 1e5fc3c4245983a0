"""Owns the tool of the tool-call benchmark: the demo's `flight_status`, which answers with when it was entered."""

import time
from datetime import date
from typing import Any

from midstream.tools import tool


@tool(read_only=True, idempotent=True)
def flight_status(airport: str, date: date) -> dict[str, Any]:
    """Get how the departures of an airport went on a day: on time, delayed, cancelled, and the delays.

    Args:
        airport: Airport code such as PVG.
        date: Day as YYYY-MM-DD.
    """
    entered_ns = time.monotonic_ns()  # one clock for all processes of a machine
    return {"airport": airport, "on_time": 212, "delayed": 31, "entered_ns": entered_ns}
