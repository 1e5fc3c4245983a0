"""Owns a server tool that never returns."""

import asyncio

from midstream.tools import tool


@tool(read_only=True)
async def sleep_forever() -> str:
    """Sleep."""
    await asyncio.Event().wait()
    return "awake"
