"""Owns how log events are written: structured, to stderr. Never holds a prompt, a completion, arguments or a key."""

import logging
import sys

import structlog


def configure_logs(level: str, *, as_json: bool) -> None:
    """Set up structlog once per process. `level` is a name of the logging module, in any case."""
    renderer = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
