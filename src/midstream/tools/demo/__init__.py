"""Owns the tools that come with the server, which answer from local data. Never opens a connection."""

from midstream.tools.demo.arithmetic import calculate
from midstream.tools.demo.clock import now
from midstream.tools.demo.database import ensure_database
from midstream.tools.demo.flights import flight_search, flight_status, on_time_rate

__all__ = ["calculate", "ensure_database", "flight_search", "flight_status", "now", "on_time_rate"]
