"""Event streams over a bare ASGI connection: comments, faults, and clients that go or do not read."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from midstream.errors import EngineDied, QueueFull
from midstream.gateway.sse import DONE, PING, ClientGone, EventStream, until_gone

Message = dict[str, Any]


class Client:
    """The other end of an ASGI call."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""
        self.is_whole = False
        self.reads = asyncio.Event()
        self.reads.set()
        self._gone = asyncio.Event()

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.body += message.get("body", b"")
        self.is_whole = not message.get("more_body", False)


class Frames:
    """A generator of frames that knows how it ended."""

    def __init__(self, *steps: bytes | Exception | asyncio.Event) -> None:
        self._steps = steps
        self.has_begun = False
        self.is_closed = False

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        self.has_begun = True
        try:
            for step in self._steps:
                if isinstance(step, bytes):
                    yield step
                elif isinstance(step, Exception):
                    raise step
                else:
                    await step.wait()
        finally:
            self.is_closed = True


def serve(frames: Frames, client: Client, *, keep_alive_s: float = 0, limit_s: float = 10) -> Awaitable[None]:
    stream = EventStream(frames(), keep_alive_s=keep_alive_s, limit_s=limit_s)
    return stream({"type": "http", "headers": []}, client.receive, client.send)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await test()
        assert len(asyncio.all_tasks()) == 1, "tasks were left behind"

    asyncio.run(limited())


def test_frames_come_in_order_and_end_with_done() -> None:
    async def test() -> None:
        client = Client()
        await serve(Frames(b"a\n\n", b"b\n\n"), client)
        assert (client.status, client.body, client.is_whole) == (200, b"a\n\nb\n\n" + DONE, True)

    run(test)


@pytest.mark.parametrize("keep_alive_s", [0, 5])
def test_a_fault_before_the_first_frame_has_its_own_status(keep_alive_s: float) -> None:
    async def test() -> None:
        client = Client()
        await serve(Frames(QueueFull("full")), client, keep_alive_s=keep_alive_s)
        assert client.status == 429
        assert b"[DONE]" not in client.body
        assert client.is_whole

    run(test)


@pytest.mark.parametrize("fault", [EngineDied("dead"), RuntimeError("a bug with a secret"), KeyError("x")])
def test_a_fault_later_is_an_error_object_and_then_done(fault: Exception) -> None:
    async def test() -> None:
        client = Client()
        with capture_logs() as events:
            await serve(Frames(b"a\n\n", fault), client)
        assert client.status == 200
        assert client.body.startswith(b'a\n\ndata: {"error":{"message":')
        assert client.body.endswith(b"\n\n" + DONE)
        assert b"secret" not in client.body
        assert [event["event"] for event in events] == ([] if isinstance(fault, EngineDied) else ["unexpected_error"])

    run(test)


def test_silence_is_filled_with_comments_from_the_start() -> None:
    async def test() -> None:
        client = Client()
        silence = asyncio.Event()
        task = asyncio.ensure_future(serve(Frames(silence, b"a\n\n"), client, keep_alive_s=0.01))
        while client.body.count(PING) < 2:
            await asyncio.sleep(0)
        assert client.status == 200
        silence.set()
        await task
        assert client.body.replace(PING, b"") == b"a\n\n" + DONE

    run(test)


@pytest.mark.parametrize("keep_alive_s", [0, 5])
@pytest.mark.parametrize("when", ["before it begins", "while it waits", "while it sends"])
def test_a_client_that_leaves_ends_the_frames(when: str, keep_alive_s: float) -> None:
    async def test() -> None:
        client = Client()
        frames = Frames(b"a\n\n", asyncio.Event())
        if when == "before it begins":
            client.leave()
        if when == "while it sends":
            client.reads.clear()
        task = asyncio.ensure_future(serve(frames, client, keep_alive_s=keep_alive_s))
        if when == "while it waits":
            while not client.body:
                await asyncio.sleep(0)
        else:
            for _ in range(5):
                await asyncio.sleep(0)
        client.leave()
        await task
        assert frames.is_closed or not frames.has_begun
        assert not client.is_whole

    run(test)


def test_a_client_that_does_not_read_is_given_up_at_the_limit() -> None:
    async def test() -> None:
        client = Client()
        client.reads.clear()
        frames = Frames(b"a\n\n")
        with capture_logs() as events:
            await serve(frames, client, limit_s=0.02)
        assert frames.is_closed
        assert [event["event"] for event in events] == ["client_reads_too_slowly"]

    run(test)


def test_until_gone_gives_the_result_or_the_fault_of_the_work() -> None:
    async def test() -> None:
        client = Client()

        class Request:
            receive = client.receive

        async def work(fault: Exception | None = None) -> int:
            if fault is not None:
                raise fault
            return 5

        request: Any = Request()
        assert await until_gone(request, work()) == 5
        with pytest.raises(ValueError, match="bad"):
            await until_gone(request, work(ValueError("bad")))
        client.leave()
        cancelled = []

        async def long_work() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        with pytest.raises(ClientGone):
            await until_gone(request, long_work())
        assert cancelled == [True]

    run(test)
