"""Owns the tools of the overlap workload: each waits, which costs no CPU, and answers."""

import asyncio
from typing import Literal

from midstream.tools import tool

PLACES = ("Bern", "Oslo", "Lima", "Cairo", "Quito", "Tokyo", "Paris", "Delhi")
Place = Literal["Bern", "Oslo", "Lima", "Cairo", "Quito", "Tokyo", "Paris", "Delhi"]
DELAYS_MS = (100, 300, 1000)


async def _answer(place: str, delay_ms: int) -> str:
    await asyncio.sleep(delay_ms / 1000)
    return f"{place}: 21 degrees"


@tool
async def look_up_100(place: Place) -> str:
    """Get the temperature of a place.

    Args:
        place: Its name.
    """
    return await _answer(place, 100)


@tool
async def look_up_300(place: Place) -> str:
    """Get the temperature of a place.

    Args:
        place: Its name.
    """
    return await _answer(place, 300)


@tool
async def look_up_1000(place: Place) -> str:
    """Get the temperature of a place.

    Args:
        place: Its name.
    """
    return await _answer(place, 1000)
