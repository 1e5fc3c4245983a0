"""Owns the load client: plain sockets that note when bytes came. Parses nothing before the run has ended.

It shares the cores with the server that it measures, so a read costs it a clock and a list entry. It knows no
SDK: what it reads is HTTP/1.1 with chunks, and `data:` lines.
"""

import asyncio
import gc
import itertools
import json
import statistics
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import uvloop

T = TypeVar("T")

Read = tuple[float, bytes]
"""`time.monotonic()` and the bytes that had come by then."""

TIMEOUT_S = 90.0


class LoadError(Exception):
    """A server answered with something other than a whole stream."""


@dataclass(frozen=True)
class Frame:
    """One `data:` line and the moment at which its last byte had come."""

    time_s: float
    data: bytes


@dataclass(frozen=True)
class Stream:
    """One answer as a client saw it. Times are of `time.monotonic()`."""

    sent_s: float
    token_times_s: tuple[float, ...]
    """Of the frames that carry text; one may hold several tokens."""
    text: str
    usage: dict[str, Any]
    events: tuple[tuple[float, dict[str, Any]], ...] = ()
    """What midstream tells of its tools: (time, the `call` of the event)."""

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.sent_s

    @property
    def num_tokens(self) -> int:
        return int(self.usage["completion_tokens"])

    @property
    def num_prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"])

    @property
    def num_cached_tokens(self) -> int:
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def num_prefilled_tokens(self) -> int:
        """Prompt tokens that went through the model: by the server's own count where it gives one."""
        computed = self.usage.get("computed_tokens")
        if computed is None:
            return self.num_prompt_tokens - self.num_cached_tokens
        return int(computed) - (self.num_tokens - 1)  # the last token is sampled and never computed

    @property
    def gaps_s(self) -> list[tuple[float, float]]:
        """(end, length) of every silence between two frames with text."""
        times = self.token_times_s
        return [(b, b - a) for a, b in itertools.pairwise(times)]


# --- what the bytes mean; pure ---


def parse_frames(reads: Sequence[Read]) -> list[Frame]:
    """The `data:` lines of one HTTP response, each with the time of the read that completed it.

    Raises LoadError when the response is no 200, or is cut.
    """
    raw = b"".join(data for _, data in reads)
    head, separator, _ = raw.partition(b"\r\n\r\n")
    if not separator or b" 200 " not in head.split(b"\r\n", 1)[0] + b" ":
        raise LoadError(f"no 200: {raw[:300]!r}")
    is_chunked = b"transfer-encoding: chunked" in head.lower()
    start = len(head) + 4
    spans = _chunk_spans(raw, start) if is_chunked else [(start, len(raw))]
    return list(_lines(raw, spans, _Clock(reads)))


class _Clock:
    """When byte number `end` had come; asked in rising order."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = iter(reads)
        self._have = 0
        self._time_s = 0.0

    def at(self, end: int) -> float:
        while self._have < end:
            self._time_s, data = next(self._reads)
            self._have += len(data)
        return self._time_s


def _chunk_spans(raw: bytes, start: int) -> list[tuple[int, int]]:
    """Where the body lies in `raw`: [start, end) of each HTTP chunk."""
    spans: list[tuple[int, int]] = []
    while True:
        line_end = raw.find(b"\r\n", start)
        if line_end < 0:
            raise LoadError("the response ended inside its body")
        size = int(raw[start:line_end].split(b";")[0], 16)
        if size == 0:
            return spans
        spans.append((line_end + 2, line_end + 2 + size))
        start = line_end + 2 + size + 2


def _lines(raw: bytes, spans: list[tuple[int, int]], clock: _Clock) -> Iterator[Frame]:
    left = b""
    for start, end in spans:
        *lines, left = (left + raw[start:end]).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield Frame(clock.at(end), line[5:].strip())


def parse_stream(sent_s: float, reads: Sequence[Read]) -> Stream:
    """Raises LoadError unless the stream has text and usage, and ended with `[DONE]` or a finish_reason."""
    times: list[float] = []
    pieces: list[str] = []
    events: list[tuple[float, dict[str, Any]]] = []
    usage: dict[str, Any] = {}
    has_ended = False
    for frame in parse_frames(reads):
        if frame.data == b"[DONE]":
            has_ended = True
            continue
        body = json.loads(frame.data)
        if "error" in body:
            raise LoadError(f"the stream ended with an error: {body['error']}")
        usage = body.get("usage") or usage
        if "event" in body:
            events.append((frame.time_s, body["event"]["data"].get("call") or {}))
        for choice in body.get("choices") or []:
            has_ended = has_ended or choice.get("finish_reason") is not None
            if text := (choice.get("delta") or {}).get("content"):
                times.append(frame.time_s)
                pieces.append(text)
    if not (has_ended and usage and (times or events)):
        raise LoadError(f"an incomplete stream: {len(times)} frames with text, usage {usage}, ended {has_ended}")
    return Stream(sent_s, tuple(times), "".join(pieces), usage, tuple(events))


def decode_rate(streams: Sequence[Stream]) -> float:
    """Tokens a second of all streams together while all of them decode: from the last first token to the first end.

    Frames with several tokens count by their stream's mean.
    """
    start_s = max(stream.token_times_s[0] for stream in streams)
    end_s = min(stream.token_times_s[-1] for stream in streams)
    if end_s <= start_s:
        raise LoadError("the streams never ran all at once; they need more tokens")
    num_tokens = sum(
        sum(start_s < time_s <= end_s for time_s in stream.token_times_s)
        * (stream.num_tokens / len(stream.token_times_s))
        for stream in streams
    )
    return num_tokens / (end_s - start_s)


def whole_rate(streams: Sequence[Stream]) -> float:
    """Tokens a second from the first request to the last token, prefill included."""
    start_s = min(stream.sent_s for stream in streams)
    return sum(stream.num_tokens for stream in streams) / (max(s.token_times_s[-1] for s in streams) - start_s)


def ttft_p50_s(streams: Sequence[Stream]) -> float:
    return statistics.median(stream.ttft_s for stream in streams)


# --- the sockets ---


class Recorder(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, request: bytes) -> None:
        self.sent_s = 0.0
        self.reads: list[Read] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sent_s = time.monotonic()
        cast(asyncio.Transport, transport).write(self._request)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.monotonic(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def stream(self) -> Stream:
        return parse_stream(self.sent_s, self.reads)


def request_bytes(port: int, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


async def send(port: int, body: dict[str, Any]) -> Recorder:
    loop = asyncio.get_running_loop()
    content = request_bytes(port, body)
    _, recorder = await loop.create_connection(lambda: Recorder(content), "127.0.0.1", port)
    return recorder


async def finish(recorders: Sequence[Recorder]) -> list[Stream]:
    """Wait for the last byte of all, then parse. Raises LoadError, TimeoutError."""
    async with asyncio.timeout(TIMEOUT_S):
        for recorder in recorders:
            await recorder.ended
    return [recorder.stream() for recorder in recorders]


async def run_streams(port: int, bodies: Sequence[dict[str, Any]]) -> list[Stream]:
    """All at once."""
    with no_collection():
        return await finish([await send(port, body) for body in bodies])


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """To its end on uvloop, which takes less of the shared cores."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


@contextmanager
def no_collection() -> Iterator[None]:
    """A pause of this client's would count as the server's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
