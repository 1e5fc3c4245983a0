"""Owns the way of an argument's text into a tool that reads it while it is written. Runs no tool."""

import asyncio
from collections.abc import AsyncIterator


class ArgumentStream(AsyncIterator[str]):
    """Pieces of text, as they come; ends when the argument has. One reader."""

    def __init__(self) -> None:
        # Bounded by the length of one argument.
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self._num_fed = 0

    def feed(self, text: str) -> None:
        self._num_fed += len(text)
        if text:
            self._pieces.put_nowait(text)

    def finish(self, whole: str) -> None:
        """The argument is `whole`: give what of it has not been given, and end."""
        self.feed(whole[self._num_fed :])
        self._pieces.put_nowait(None)

    async def __anext__(self) -> str:
        piece = await self._pieces.get()
        if piece is None:
            self._pieces.put_nowait(None)
            raise StopAsyncIteration
        return piece
