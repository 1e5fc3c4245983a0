"""Owns the ASGI application: routes and what stands around them. Wires nothing below it."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from midstream import __version__
from midstream.gateway import chat, completions, info
from midstream.gateway.http_errors import install_handlers
from midstream.gateway.middleware import BearerKeys, Faults, RequestId
from midstream.gateway.owner import Keys
from midstream.gateway.state import Gateway


def create_app(gateway: Gateway) -> FastAPI:
    app = FastAPI(title="midstream", version=__version__, redirect_slashes=False)
    app.state.gateway = gateway
    for module in (chat, completions, info):
        app.include_router(module.router)
    install_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(Faults)
    app.add_middleware(BearerKeys, keys=Keys(gateway.config.api_keys))
    if gateway.config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(gateway.config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    app.add_middleware(RequestId)
    return app
