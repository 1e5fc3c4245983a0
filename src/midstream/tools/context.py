"""Owns what a running tool may say about itself. Knows no host: a tool that imports this runs anywhere."""

from collections.abc import Callable
from contextvars import ContextVar

Reporter = Callable[[int | None, str], None]

reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)
"""Set by whoever runs a tool, for that run."""


def report_progress(percent: int | None, text: str = "") -> None:
    """Tell the client how far this call is, from any thread; None: unknown. Does nothing outside a call.

    Reports that come faster than they can be sent are dropped, except the last one.
    """
    report = reporter.get()
    if report is not None:
        report(percent, text)
