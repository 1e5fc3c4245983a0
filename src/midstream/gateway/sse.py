"""Owns server-sent events over ASGI: keep-alives, and a client that goes away. Knows nothing of what is sent."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from midstream.gateway.http_errors import as_midstream_error, error_frame, error_response

log = structlog.get_logger()

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client closed its connection."""


async def until_gone(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, cancelled as soon as the client goes away; raises ClientGone then."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


class EventStream(Response):
    """Sends frames as they come. Headers go with the first one, so that an error before it has its own status.

    The frames end with `[DONE]`, after an error object too. A client that goes away ends the frames' generator, and
    so does one that has not read them all after `limit_s`.
    """

    def __init__(self, frames: AsyncGenerator[bytes, None], *, keep_alive_s: float, limit_s: float) -> None:
        super().__init__()
        self._frames = frames
        self._keep_alive_s = keep_alive_s or None
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await until_gone(Request(scope, receive), self._send_all(scope, receive, send))
        except TimeoutError:
            log.warning("client_reads_too_slowly", limit_s=self._limit_s)
        except (ClientGone, OSError):
            return

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False
        try:
            async with aclosing(_with_pings(self._frames, self._keep_alive_s)) as frames:
                async for frame in frames:
                    if not has_started:
                        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                        has_started = True
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        except OSError:
            raise
        except Exception as fault:
            error = as_midstream_error(fault)
            if not has_started:
                await error_response(error)(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": error_frame(error), "more_body": True})
        finally:
            await self._frames.aclose()
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


async def _with_pings(frames: AsyncGenerator[bytes, None], silence_s: float | None) -> AsyncGenerator[bytes, None]:
    """The frames, with a comment after every `silence_s` in which none came, before the first one too."""
    if silence_s is None:
        async for frame in frames:
            yield frame
        return
    pending: asyncio.Future[bytes] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(frames))
            done, _ = await asyncio.wait({pending}, timeout=silence_s)
            if not done:
                yield PING
                continue
            try:
                frame = pending.result()
            except StopAsyncIteration:
                return
            finally:
                pending = None
            yield frame
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[object]]) -> None:
    while True:
        message = await receive()
        if isinstance(message, dict) and message["type"] == "http.disconnect":
            return
