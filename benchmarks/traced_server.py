"""Owns `midstream serve` with a note of each server call's marks. Changes nothing else.

Clients are told neither the passes nor when the last token that a call needed was sampled. At its end the server
writes {call id: {routed_pass, dispatch_pass, sampled_ns}} to the file that BENCH_TRACE_FILE names.
"""

import atexit
import json
import os
from pathlib import Path
from typing import Any

from midstream.cli.main import app
from midstream.messages import CallReady, CallRouted
from midstream.routing.dispatching.server_call import ServerCall

_marks: dict[str, dict[str, int]] = {}
_init, _ready = ServerCall.__init__, ServerCall.ready


def _routed(self: ServerCall, routed: CallRouted, *args: Any, **fields: Any) -> None:
    _init(self, routed, *args, **fields)
    _marks[self.call_id] = {"routed_pass": routed.mark.pass_number}


def _noted(self: ServerCall, event: CallReady) -> None:
    _marks[self.call_id] |= {"dispatch_pass": event.mark.pass_number, "sampled_ns": event.mark.time_ns}
    _ready(self, event)


def _write() -> None:
    Path(os.environ["BENCH_TRACE_FILE"]).write_text(json.dumps(_marks))


if __name__ == "__main__":
    ServerCall.__init__ = _routed  # type: ignore[method-assign]
    ServerCall.ready = _noted  # type: ignore[method-assign]
    atexit.register(_write)
    app()
