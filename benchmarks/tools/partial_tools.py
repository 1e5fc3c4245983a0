"""Owns the tools of the partial-execution workload: each twice, reading its argument while it is written, and whole.

The work is time that passes, the same in both: code that runs piece by piece, a query that is planned once its table
is known and then runs, a search that warms up at the first word.
Source: Conveyor, arXiv:2406.00059, in small.
"""

import asyncio
from collections.abc import AsyncIterator

from midstream.tools import tool

PIECE_CHARACTERS = 40
PIECE_S = 0.02
KNOWN_CHARACTERS = 30
PREPARE_S = 0.15
RUN_S = 0.03
TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 200, "maxLength": 240}},
    "required": ["text"],
    "additionalProperties": False,
}


@tool(read_only=True, parameters=TEXT)
async def code_streamed(text: AsyncIterator[str]) -> str:
    """Run code."""
    num_characters = num_run = 0
    async for piece in text:
        num_characters += len(piece)
        while num_characters - num_run >= PIECE_CHARACTERS:
            await asyncio.sleep(PIECE_S)
            num_run += PIECE_CHARACTERS
    return "done"


@tool(read_only=True, parameters=TEXT)
async def code_whole(text: str) -> str:
    """Run code."""
    await asyncio.sleep(len(text) // PIECE_CHARACTERS * PIECE_S)
    return "done"


@tool(read_only=True, parameters=TEXT)
async def query_streamed(text: AsyncIterator[str]) -> str:
    """Run a query."""
    return await _prepared(text, KNOWN_CHARACTERS)


@tool(read_only=True, parameters=TEXT)
async def query_whole(text: str) -> str:
    """Run a query."""
    await asyncio.sleep(PREPARE_S + RUN_S)
    return "done"


@tool(read_only=True, parameters=TEXT)
async def search_streamed(text: AsyncIterator[str]) -> str:
    """Search for words."""
    return await _prepared(text, 1)


@tool(read_only=True, parameters=TEXT)
async def search_whole(text: str) -> str:
    """Search for words."""
    await asyncio.sleep(PREPARE_S + RUN_S)
    return "done"


async def _prepared(text: AsyncIterator[str], num_needed: int) -> str:
    """Prepare beside the reading, from the character on at which it can begin; run at the end."""
    preparing: asyncio.Task[None] | None = None
    num_characters = 0
    async for piece in text:
        num_characters += len(piece)
        if preparing is None and num_characters >= num_needed:
            preparing = asyncio.create_task(asyncio.sleep(PREPARE_S))
    await (preparing or asyncio.sleep(PREPARE_S))
    await asyncio.sleep(RUN_S)
    return "done"
