"""Owns a small HTTP server on loopback that gives canned answers. Knows nothing of midstream's server."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Parts = list[bytes | Callable[[], object]]
"""Bytes go out as they are; a callable is called between them."""
Answer = tuple[int, Parts]
"""(status, parts)"""


@dataclass
class Canned:
    answers: list[Answer]
    models: list[str] = field(default_factory=lambda: ["tiny"])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> bytes:
    return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | fields)


def frame(payload: Any) -> bytes:
    return f"data: {json.dumps(payload, ensure_ascii=False)}\n\n".encode()


def status(state: str, **call: Any) -> bytes:
    data = {
        "description": state,
        "done": False,
        "call": {"id": "s1", "name": "flight_status", "state": state} | call,
    }
    return frame({"choices": [], "event": {"type": "status", "data": data}})


def text_answer(*texts: str) -> Answer:
    return 200, [*(chunk({"content": text}) for text in texts), chunk({}, "stop"), b"data: [DONE]\n\n"]


@contextmanager
def canned(*answers: Answer) -> Iterator[Canned]:
    """Serve `answers` in turn to POSTs on /v1/chat/completions, and the models on /v1/models."""
    state = Canned(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": model} for model in state.models]}).encode()
            self._send(200 if self.path == "/v1/models" else 404, [body])

        def do_POST(self) -> None:
            state.headers.append(dict(self.headers))
            state.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._send(*(state.answers.pop(0) if self.path == "/v1/chat/completions" else (404, [b"{}"])))

        def _send(self, code: int, parts: Parts) -> None:
            self.send_response(code)
            self.end_headers()
            try:
                for part in parts:
                    if isinstance(part, bytes):
                        self.wfile.write(part)
                    else:
                        part()
            except OSError:
                pass  # the client hung up, as a test wanted

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
