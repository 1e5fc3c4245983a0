"""Owns several choices of one request side by side, as one stream of (choice, item). Renders nothing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from midstream.gateway.generation import Generation
from midstream.gateway.items import Ended, Item
from midstream.gateway.request_metrics import RequestMetrics
from midstream.routing.dispatching.status import CallStatus


async def run_all(
    generations: list[Generation], metrics: RequestMetrics, *, max_tokens: int
) -> AsyncGenerator[tuple[int, Item], None]:
    """Hand all choices to the engine, or none, and tell what comes of them, measured. Leaving it early stops them.

    Raises CapacityError or EngineDied where they are not accepted, and what `merged` raises.
    """
    try:
        # Here, so that whoever left before it leaves nothing with the engine.
        for generation in generations:
            generation.start()
    except Exception:
        _cancel(generations)
        raise
    metrics.begin(n=len(generations), max_tokens=max_tokens)
    failed = False
    try:
        async with aclosing(merged(generations)) as items:
            async for choice, item in items:
                metrics.see(item)
                yield choice, item
    except Exception:
        failed = True
        raise
    finally:
        _cancel(generations)
        metrics.finish(failed=failed)


def _cancel(generations: list[Generation]) -> None:
    for generation in generations:
        generation.cancel()


async def merged(generations: list[Generation]) -> AsyncGenerator[tuple[int, Item], None]:
    """Items as they come; nothing of another choice before choice 0 has begun. Ends after every choice's `Ended`.

    Raises what the first failing choice raises; leaving it early stops all of them.
    """
    if len(generations) == 1:
        async with aclosing(generations[0].items()) as items:
            async for item in items:
                yield 0, item
        return
    # Bounded by the generations' own queues, which it replaces while they wait.
    queue: asyncio.Queue[tuple[int, Item | BaseException]] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(i, generation, queue)) for i, generation in enumerate(generations)]
    try:
        async for pair in _in_order(queue, len(generations)):
            yield pair
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(index: int, generation: Generation, queue: asyncio.Queue[tuple[int, Item | BaseException]]) -> None:
    try:
        async with aclosing(generation.items()) as items:
            async for item in items:
                queue.put_nowait((index, item))
    except Exception as error:
        queue.put_nowait((index, error))


async def _in_order(
    queue: asyncio.Queue[tuple[int, Item | BaseException]], num_open: int
) -> AsyncGenerator[tuple[int, Item], None]:
    held: list[tuple[int, Item]] = []
    has_begun = False
    while num_open:
        index, item = await queue.get()
        if isinstance(item, BaseException):
            raise item
        num_open -= isinstance(item, Ended)
        if not has_begun and index != 0:
            held.append((index, item))
            continue
        yield index, item
        # A call's status is no part of a choice on the wire.
        if not has_begun and not isinstance(item, CallStatus):
            has_begun = True
            for pair in held:
                yield pair
