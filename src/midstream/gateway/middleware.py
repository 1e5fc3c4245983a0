"""Owns what holds for every route: keys, request ids, faults. Plain ASGI, so that streams pass through untouched."""

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midstream.errors import Unauthorized
from midstream.gateway.http_errors import as_midstream_error, error_response
from midstream.gateway.owner import Keys
from midstream.gateway.sse import ClientGone

OPEN_PATHS = frozenset({"/health"})
_MAX_ID_CHARACTERS = 128


class RequestId:
    """Echoes the client's `x-request-id`, or makes one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        is_usable = given.isascii() and given.isprintable() and 0 < len(given) <= _MAX_ID_CHARACTERS
        request_id = given if is_usable else secrets.token_hex(8)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class BearerKeys:
    """Lets a request through when its key is one of ours, and notes whose it is. /health needs none."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                owner = self._keys.check(Headers(scope=scope).get("authorization", ""))
            except Unauthorized as error:
                await error_response(error)(scope, receive, send)
                return
            scope.setdefault("state", {})["owner"] = owner
        await self._app(scope, receive, send)


class Faults:
    """Answers what no route expected with a 500 that leaves the connection usable; a client that left gets nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def noting_the_start(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, noting_the_start)
        except (ClientGone, ClientDisconnect):
            return
        except Exception as fault:
            if has_started:
                raise
            await error_response(as_midstream_error(fault))(scope, receive, send)
