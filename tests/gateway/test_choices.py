"""Several choices as one stream: choice 0 begins, one failure ends all, and nobody is left running."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from midstream.errors import EngineDied
from midstream.gateway.choices import merged
from midstream.gateway.items import Ended, Item
from midstream.messages import FinishReason, TextDelta, TokenCounts
from midstream.routing.dispatching.status import CallState, CallStatus

ENDED = Ended(FinishReason.STOP, None, TokenCounts(1, 1, 0, 0, 1, 1))
ROUTED = CallStatus("call_1", "now", CallState.ROUTED, "Calling now")


class Choice:
    """Gives out what the test puts in."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Item | Exception] = asyncio.Queue()
        self.is_closed = False

    def put(self, *items: Item | Exception) -> "Choice":
        for item in items:
            self.inbox.put_nowait(item)
        return self

    async def items(self) -> AsyncGenerator[Item, None]:
        try:
            while True:
                item = await self.inbox.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if isinstance(item, Ended):
                    return
        finally:
            self.is_closed = True


async def collect(choices: list[Choice]) -> list[tuple[int, Item]]:
    generations: Any = choices
    return [pair async for pair in merged(generations)]


def text(number: int) -> TextDelta:
    return TextDelta(str(number))


def test_nothing_of_another_choice_comes_before_choice_0_has_begun() -> None:
    async def test() -> None:
        zero, one = Choice(), Choice().put(text(1), text(2), ENDED)
        task = asyncio.ensure_future(collect([zero, one]))
        await asyncio.sleep(0.01)
        zero.put(text(0), ENDED)
        assert await task == [(0, text(0)), (1, text(1)), (1, text(2)), (1, ENDED), (0, ENDED)]

    asyncio.run(test())


def test_a_calls_status_does_not_begin_a_choice() -> None:
    async def test() -> None:
        zero, one = Choice().put(ROUTED), Choice().put(text(1), ENDED)
        task = asyncio.ensure_future(collect([zero, one]))
        await asyncio.sleep(0.01)
        zero.put(text(0), ENDED)
        assert (await task)[:3] == [(0, ROUTED), (0, text(0)), (1, text(1))]

    asyncio.run(test())


@pytest.mark.parametrize("num_choices", [1, 3])
def test_one_choices_failure_ends_all(num_choices: int) -> None:
    async def test() -> None:
        choices = [Choice() for _ in range(num_choices)]
        choices[-1].put(EngineDied("dead"))
        with pytest.raises(EngineDied):
            await collect(choices)
        assert all(choice.is_closed for choice in choices)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(test())


@pytest.mark.parametrize("num_choices", [1, 3])
def test_leaving_early_ends_all(num_choices: int) -> None:
    async def test() -> None:
        choices = [Choice().put(text(0)) for _ in range(num_choices)]
        generations: Any = choices
        stream = merged(generations)
        assert await anext(stream) == (0, text(0))
        await stream.aclose()
        assert all(choice.is_closed for choice in choices)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(test())
