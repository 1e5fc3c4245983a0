"""Owns server-sent events over ASGI: keep-alives, and a client that goes away. Knows nothing of what is sent."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
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
        sender = _Sender(send)
        pinging = asyncio.create_task(_ping(sender, self._keep_alive_s))
        try:
            async for frame in self._frames:
                await sender.send(frame)
        except OSError:
            raise
        except Exception as fault:
            pinging.cancel()
            error = as_midstream_error(fault)
            if not sender.has_started:
                await error_response(error)(scope, receive, send)
                return
            await sender.send(error_frame(error))
        finally:
            pinging.cancel()
            await self._frames.aclose()
        await sender.send(DONE, is_last=True)


class _Sender:
    """Puts frames on the wire, the headers before the first one. Two tasks may use it: a frame is written whole."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False
        self.last_s = time.monotonic()

    async def send(self, frame: bytes, *, is_last: bool = False) -> None:
        self.last_s = time.monotonic()
        if not self.has_started:
            self.has_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._send({"type": "http.response.body", "body": frame, "more_body": not is_last})


async def _ping(sender: _Sender, silence_s: float | None) -> None:
    """Send a comment after every `silence_s` in which nothing was sent, before the first frame too."""
    with suppress(OSError):  # the client has gone: whoever sends frames hears of it
        while silence_s is not None:
            rest_s = sender.last_s + silence_s - time.monotonic()
            if rest_s <= 0:
                await sender.send(PING)
            else:
                await asyncio.sleep(rest_s)


async def _gone(receive: Callable[[], Awaitable[object]]) -> None:
    while True:
        message = await receive()
        if isinstance(message, dict) and message["type"] == "http.disconnect":
            return
