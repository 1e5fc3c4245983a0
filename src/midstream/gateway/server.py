"""Owns the HTTP server's life: it listens, drains after a signal, and stops. Routes are the app's."""

import asyncio
import contextlib
import signal
import socket
import time
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from midstream.errors import OperatorError
from midstream.gateway.state import Gateway

log = structlog.get_logger()

_POLL_S = 0.05
_TICK_S = 1.0
"""How old the `date` header may be."""


class Server(uvicorn.Server):
    """uvicorn, but a first signal drains: open streams finish, new requests get a 503, then it stops.

    A second signal stops at once.
    """

    def __init__(self, app: FastAPI, gateway: Gateway) -> None:
        config = gateway.config
        self._should_exit = False
        self._wakes = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                loop="uvloop",
                http="httptools",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._gateway = gateway
        self._drain: asyncio.Task[None] | None = None

    @property
    def should_exit(self) -> bool:
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        # From signal handlers and other threads, too: setting an event wakes only its own loop.
        if value and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wakes.set)

    async def main_loop(self) -> None:
        """uvicorn looks ten times a second whether it is over; here it is told, and only the clock ticks."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wakes.wait(), _TICK_S)

    @property
    def bound_port(self) -> int:
        """The port that is listened on, once `started`."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    async def serve(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Serve until a signal. Raises OperatorError when it cannot listen."""
        self._loop = asyncio.get_running_loop()
        await super().serve()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn's way to say so; the cause is in its log
            host, port = self.config.host, self.config.port
            raise OperatorError(
                f"cannot listen on {host}:{port}; is another server there? take another --port"
            ) from None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._gateway.is_draining or self._loop is None:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
            return
        self._gateway.is_draining = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain = asyncio.ensure_future(self._drain_then_exit())

    async def _drain_then_exit(self) -> None:
        # Requests, not the engine's: an answer that is computed still has to be read, and its tools to end.
        open_requests = self.server_state.tasks
        limit = time.monotonic() + self._gateway.config.drain_s
        log.info("draining", num_open=len(open_requests), limit_s=self._gateway.config.drain_s)
        while open_requests and time.monotonic() < limit and not self.should_exit:
            await asyncio.sleep(_POLL_S)
        if open_requests:
            log.warning("drain_limit_reached", num_open=len(open_requests))
            self._gateway.services.engine.end_all("the server is shutting down")
        self.should_exit = True
