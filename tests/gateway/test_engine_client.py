"""The engine client against engines that misbehave: each ends in one `Finished` a request, and in a new engine."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from midstream.errors import EngineDied, EngineLoading, OperatorError, QueueFull
from midstream.gateway import engine_client
from midstream.gateway.engine_client import EngineClient, EngineState
from midstream.messages import (
    Abort,
    AddRequest,
    Commands,
    EngineStats,
    Finished,
    FinishReason,
    Hello,
    LoadFailed,
    Resume,
    SamplingParams,
    SequenceOutput,
    StepOutput,
    TokenCounts,
)
from midstream.protocol.framing import FrameReader, encode_frame
from midstream.telemetry.metrics import Metrics

HELLO = encode_frame(Hello(512, 64, 16, 0.1))
COUNTS = TokenCounts(1, 1, 0, 0, 1, 1)
STATS = EngineStats(0, 0, 0, 64, 64, 0, 0, 0, 0, 0)


class FakeEngine:
    """An engine process whose every word the test says."""

    pid: int | None = 4711

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock.dup()
        self.sock.setblocking(False)
        self.was_killed = False
        self.how = "exit code 1"
        self._ended = asyncio.Event()
        self._frames = FrameReader()

    async def wait(self) -> str:
        await self._ended.wait()
        return self.how

    def kill(self) -> None:
        self.was_killed = True
        self.how = "killed by signal 9"
        self.end()

    def end(self) -> None:
        self.sock.close()
        self._ended.set()

    def say(self, data: bytes) -> None:
        self.sock.send(data)

    async def hear(self) -> list[Any]:
        """The commands of the next message."""
        data = await asyncio.get_running_loop().sock_recv(self.sock, 65_536)
        return [c for body in self._frames.feed(data) for c in msgspec.msgpack.decode(body, type=Commands).commands]


class Client(EngineClient):
    """The client and the engines that it launched, in order."""

    def __init__(self, max_open: int = 4) -> None:
        self.engines: list[FakeEngine] = []
        self.outputs: list[SequenceOutput] = []
        self.launch_fault: Exception | None = None
        super().__init__(self.launch, max_open=max_open, metrics=Metrics())

    async def launch(self, sock: socket.socket) -> FakeEngine:
        if self.launch_fault is not None:
            raise self.launch_fault
        self.engines.append(FakeEngine(sock))
        return self.engines[-1]

    @property
    def last(self) -> FakeEngine:
        return self.engines[-1]

    async def ready(self) -> "Client":
        starting = asyncio.ensure_future(self.start())
        await until(lambda: self.engines)
        self.last.say(HELLO)
        await starting
        return self

    def add(self) -> int:
        request_id = self.next_request_id()
        self.submit(AddRequest(request_id, [1], SamplingParams(1)), self.outputs.append)
        return request_id

    async def stop(self) -> None:
        closing = asyncio.ensure_future(self.close())
        await asyncio.sleep(0)
        for engine in self.engines:
            engine.end()
        await closing


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0)


def run(test: Callable[[Client], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await test(Client())
        assert len(asyncio.all_tasks()) == 1, "tasks were left behind"

    asyncio.run(limited())


@pytest.fixture(autouse=True)
def _is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "_MIN_BACKOFF_S", 0.001)
    monkeypatch.setattr(engine_client, "_GRACE_S", 0.02)


def output(request_id: int, finished: Finished | None = None) -> bytes:
    return encode_frame(StepOutput([SequenceOutput(request_id, [5], [], COUNTS, finished=finished)], STATS))


def test_outputs_reach_who_asked_until_the_last_one() -> None:
    async def test(client: Client) -> None:
        await client.ready()
        request_id = client.add()
        [command] = await client.last.hear()
        assert isinstance(command, AddRequest)
        client.last.say(output(request_id) + output(99) + output(request_id, Finished(FinishReason.STOP)))
        await until(lambda: len(client.outputs) == 2)
        assert client.num_open == 0
        client.last.say(output(request_id) + HELLO)
        hello = client.hello
        await until(lambda: client.hello is not hello)
        assert len(client.outputs) == 2, "something came after the end"
        await client.stop()

    run(test)


def test_an_abort_is_sent_once_and_nothing_is_heard_after_it() -> None:
    async def test(client: Client) -> None:
        await client.ready()
        request_id = client.add()
        client.abort(request_id)
        client.abort(request_id)
        client.resume(Resume(request_id, [1]))
        commands = await client.last.hear()
        assert [type(command) for command in commands] == [AddRequest, Abort], "one message a loop turn, in order"
        client.last.say(output(request_id, Finished(FinishReason.ABORT)) + HELLO)
        hello = client.hello
        await until(lambda: client.hello is not hello)
        assert client.outputs == []
        await client.stop()

    run(test)


def test_past_its_bound_nothing_is_accepted() -> None:
    async def test(client: Client) -> None:
        await client.ready()
        first, *_ = [client.add() for _ in range(4)]
        with pytest.raises(QueueFull, match="4 requests are open; the limit is 4"):
            client.add()
        client.abort(first)
        client.add()
        await client.stop()

    run(test)


@pytest.mark.parametrize(
    ("last_words", "cause"),
    [
        (b"", "exit code 1"),
        (output(1)[:-3], "exit code 1"),
        (b"\x00\x00\x00\x02\xc1\xc1", "no message"),
        (encode_frame(Abort(1)), "no message"),
        (b"\xff\xff\xff\xff", "no message"),
    ],
    ids=["silence", "half a message", "no msgpack", "a command", "4 GB"],
)
def test_an_engine_that_ends_ends_every_request_once(last_words: bytes, cause: str) -> None:
    async def test(client: Client) -> None:
        await client.ready()
        ids = [client.add(), client.add()]
        with capture_logs() as events:
            client.last.say(last_words or output(77))
            if cause != "no message":
                client.last.end()
            await until(lambda: len(client.engines) == 2)
        assert [output.request_id for output in client.outputs] == ids
        for ended in client.outputs:
            assert ended.finished is not None
            assert ended.finished.reason is FinishReason.ERROR
            assert ended.finished.error is not None
            assert cause in ended.finished.error
        [event] = [event for event in events if event["event"] == "engine_died"]
        assert cause in event["how"]
        with pytest.raises(EngineLoading):
            client.add()
        client.last.say(HELLO)
        await until(lambda: client.state is EngineState.READY)
        client.add()
        await client.stop()

    run(test)


def test_an_engine_without_its_socket_takes_nothing_more_and_is_killed() -> None:
    async def test(client: Client) -> None:
        await client.ready()
        client.add()
        hung = client.last
        hung.sock.close()  # and its process goes on
        await until(lambda: client.state is EngineState.DEAD)
        with pytest.raises(EngineDied):
            client.add()
        await until(lambda: client.outputs)
        assert hung.was_killed
        await until(lambda: len(client.engines) == 2)
        await client.stop()

    run(test)


def test_an_engine_that_cannot_load_is_the_operators_to_mend() -> None:
    async def test(client: Client) -> None:
        starting = asyncio.ensure_future(client.start())
        await until(lambda: client.engines)
        client.last.say(encode_frame(LoadFailed("no such model")))
        client.last.end()
        with pytest.raises(OperatorError, match="no such model"):
            await starting
        await client.close()

    run(test)


def test_an_engine_that_dies_while_it_loads_is_not_started_again_and_again() -> None:
    async def test(client: Client) -> None:
        starting = asyncio.ensure_future(client.start())
        await until(lambda: client.engines)
        client.last.how = "killed by signal 9"
        client.last.end()
        with pytest.raises(OperatorError, match="killed by signal 9"):
            await starting
        await client.close()
        assert len(client.engines) == 1

    run(test)


def test_a_process_that_cannot_be_started_is_told_or_tried_again() -> None:
    async def test(client: Client) -> None:
        client.launch_fault = BlockingIOError(11, "Resource temporarily unavailable")
        with pytest.raises(OperatorError, match="cannot be started"):
            await client.start()
        await client.close()
        later = await Client().ready()
        later.launch_fault = client.launch_fault
        later.last.end()
        with capture_logs() as events:
            await until(lambda: len([e for e in events if e["event"] == "engine_died"]) >= 3)
        waits = [event["restart_in_s"] for event in events if event["event"] == "engine_died"]
        assert waits[1] < waits[2], "it waits longer each time"
        later.launch_fault = None
        await until(lambda: len(later.engines) == 2)
        await later.stop()

    run(test)


def test_closing_ends_requests_and_the_engine() -> None:
    async def test(client: Client) -> None:
        await client.ready()
        client.add()
        await client.stop()
        [ended] = client.outputs
        assert ended.finished is not None
        assert client.num_open == 0

    run(test)


def test_closing_while_it_loads_does_not_wait_for_it() -> None:
    async def test(client: Client) -> None:
        starting = asyncio.ensure_future(client.start())
        await until(lambda: client.engines)
        await asyncio.sleep(0)
        await client.close()
        assert client.last.was_killed
        with pytest.raises((OperatorError, asyncio.CancelledError)):
            await starting

    run(test)


def test_closing_while_it_is_launched_leaves_no_process() -> None:
    async def test(client: Client) -> None:
        may_launch = asyncio.Event()
        launch = client.launch

        async def slow_launch(sock: socket.socket) -> FakeEngine:
            await may_launch.wait()
            return await launch(sock)

        client._launch = slow_launch
        starting = asyncio.ensure_future(client.start())
        await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        may_launch.set()
        await closing
        assert client.last.was_killed
        with pytest.raises((OperatorError, asyncio.CancelledError)):
            await starting

    run(test)


def test_every_request_can_be_ended_at_once() -> None:
    async def test(client: Client) -> None:
        await client.ready()
        ids = [client.add(), client.add()]
        client.end_all("shutting down")
        assert [output.request_id for output in client.outputs] == ids
        assert {ended.finished.error for ended in client.outputs if ended.finished} == {"shutting down"}
        commands = await client.last.hear()
        assert [command.request_id for command in commands if isinstance(command, Abort)] == ids
        await client.stop()

    run(test)
