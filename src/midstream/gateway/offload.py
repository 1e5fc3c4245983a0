"""Owns which work leaves the event loop: what is long by the length of its text. Knows nothing of the work."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INLINE_CHARACTERS = 16_384
"""Tokenising goes at about 1 MB/s: longer texts would hold up every stream."""


async def sized(num_characters: int, work: Callable[[], T]) -> T:
    """Do the work here, or in a thread where it is long. It touches nothing that the event loop owns."""
    if num_characters <= INLINE_CHARACTERS:
        return work()
    return await asyncio.to_thread(work)
