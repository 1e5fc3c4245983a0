"""Owns the preparation workload: what lies between a call's last token and its tool, in two ways.

JSON: the text is collected, parsed when the call has ended, written again and posted over HTTP to a server that
parses it. BTIF: each argument is encoded as it ends; what is left is to join the frame and write it to a socket.
"""

import asyncio
import json
import multiprocessing
import socket
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from benchmarks.tools.bfcl import Case, load
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from midstream.protocol.btif import FrameBuilder, Layout, decode_arguments
from midstream.protocol.envelope import EnvelopeReader, Kind, encode_message

Figures = dict[str, list[float]]

_ROUNDS = 3
_TOOL_ID = 7


class Call:
    """One call of BFCL's, in both forms."""

    def __init__(self, case: Case) -> None:
        [(name, accepted)] = case.accepted[0].items()
        tool = next(tool for tool in case.tools if tool.name == name)
        # "" stands for "may be left out".
        self.arguments = {key: values[0] for key, values in accepted.items() if values and values[0] != ""}
        self.text = json.dumps({"name": name, "arguments": self.arguments})
        self.layout = Layout.of(tool.parameters)

    def builder(self) -> FrameBuilder:
        """With every argument encoded, as it is when the call's last token comes."""
        builder = FrameBuilder(_TOOL_ID, self.layout)
        for key, value in self.arguments.items():
            builder.put(key, json.dumps(value))
        return builder


def calls(cache: Path) -> list[Call]:
    made = [Call(case) for case in load("simple", cache)]
    return [call for call in made if call.arguments.keys() <= set(call.layout.names)]


def measure(cache: Path) -> Figures:
    """µs, bytes and allocations of each call; the round trips are to a process of their own."""
    every = calls(cache)
    figures: Figures = {
        "JSON over HTTP: prepare, µs": [_least_us(partial(_json_request, call)) for call in every],
        "BTIF over a local socket: prepare, µs": _built_us(every),
        "JSON over HTTP: bytes": [float(len(_json_request(call))) for call in every],
        "BTIF over a local socket: bytes": [float(len(_message(call.builder()))) for call in every],
        "JSON over HTTP: allocated, bytes": [_allocated(partial(_json_request, call)) for call in every],
        "BTIF over a local socket: allocated, bytes": [_allocated_built(call) for call in every],
    }
    figures["JSON over HTTP: to the tool's arguments and back, µs"] = asyncio.run(_http_round_trips(every))
    figures["BTIF over a local socket: to the tool's arguments and back, µs"] = _socket_round_trips(every)
    return figures


def _json_request(call: Call) -> bytes:
    """What a server does at the end of a call: parse its text, and write the request to the tool's server."""
    parsed = json.loads(call.text)
    body = json.dumps({"tool": parsed["name"], "arguments": parsed["arguments"]}).encode()
    head = f"POST /call HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _message(builder: FrameBuilder) -> bytes:
    return encode_message(Kind.CALL, 1, builder.build())


def _built_us(every: list[Call]) -> list[float]:
    """Joining the frame; the arguments were encoded while the call was decoded."""
    times = []
    for call in every:
        builders = [call.builder() for _ in range(_ROUNDS)]
        took = []
        for builder in builders:
            start_ns = time.perf_counter_ns()
            _message(builder)
            took.append(time.perf_counter_ns() - start_ns)
        times.append(min(took) / 1000)
    return times


def _least_us(work: Callable[[], object]) -> float:
    took = []
    for _ in range(_ROUNDS):
        start_ns = time.perf_counter_ns()
        work()
        took.append(time.perf_counter_ns() - start_ns)
    return min(took) / 1000


def _allocated(work: Callable[[], object]) -> float:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return float(peak - before)


def _allocated_built(call: Call) -> float:
    builder = call.builder()
    return _allocated(lambda: _message(builder))


# --- the other process ---


async def _answer(request: Request) -> JSONResponse:
    body: dict[str, Any] = await request.json()
    return JSONResponse({"result": len(body["arguments"])})


def _serve_http(port: int) -> None:
    app = Starlette(routes=[Route("/call", _answer, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


async def _http_round_trips(every: list[Call]) -> list[float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = multiprocessing.get_context("spawn").Process(target=_serve_http, args=(port,), daemon=True)
    server.start()
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await _until_it_answers(client)
            times = []
            for call in every:
                start_ns = time.perf_counter_ns()
                parsed = json.loads(call.text)
                response = await client.post("/call", json=parsed)
                response.json()
                times.append((time.perf_counter_ns() - start_ns) / 1000)
            return times
    finally:
        server.terminate()
        server.join()


async def _until_it_answers(client: httpx2.AsyncClient) -> None:
    for _ in range(200):
        try:
            await client.post("/call", json={"arguments": {}})
        except httpx2.TransportError:
            await asyncio.sleep(0.05)
        else:
            return
    raise RuntimeError("the HTTP server did not start")


def _serve_socket(sock: socket.socket, layouts: list[Layout]) -> None:
    reader = EnvelopeReader()
    while data := sock.recv(1 << 16):
        for message in reader.feed(data):
            arguments = decode_arguments(message.payload, layouts[message.call])
            sock.sendall(encode_message(Kind.RESULT, message.call, b"\x0atext/plain" + str(len(arguments)).encode()))


def _socket_round_trips(every: list[Call]) -> list[float]:
    ours, theirs = socket.socketpair()
    layouts = [call.layout for call in every]
    server = multiprocessing.get_context("fork").Process(target=_serve_socket, args=(theirs, layouts), daemon=True)
    server.start()
    theirs.close()
    reader = EnvelopeReader()
    times = []
    try:
        for number, call in enumerate(every):
            builder = call.builder()
            start_ns = time.perf_counter_ns()
            ours.sendall(encode_message(Kind.CALL, number, builder.build()))
            while not reader.feed(ours.recv(1 << 16)):
                pass
            times.append((time.perf_counter_ns() - start_ns) / 1000)
    finally:
        ours.close()
        server.join(5)
    return times
