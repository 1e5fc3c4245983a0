import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable

import pytest

from midstream.protocol import btif
from midstream.protocol.envelope import EnvelopeReader, Kind, Message, encode_message
from midstream.protocol.payloads import Error, ErrorCode, Hello, Open, Result
from midstream.tools.host import serve
from midstream.tools.limits import HostLimits
from midstream.tools.registry import Registry, tool

GREETING = Hello({"name": "test"}).pack()


@tool
async def echo(text: str) -> str:
    return text


@tool
async def hang() -> None:
    await asyncio.Event().wait()


@tool
def wait_at_the_gate() -> str:
    GATE.wait()
    return "through"


GATE = threading.Event()
REGISTRY = Registry([echo, hang, wait_at_the_gate])
ECHO, HANG, WAIT = (REGISTRY.by_name[name].spec for name in ("echo", "hang", "wait_at_the_gate"))
ECHO_HI = btif.encode(ECHO.tool_id, btif.Layout.of(ECHO.parameters), '{"text":"hi"}')
HANG_NOW = btif.encode(HANG.tool_id, btif.Layout.of(HANG.parameters), "{}")


class Peer:
    """The client's end, one message at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._envelope = EnvelopeReader()
        self._received: list[Message] = []

    async def send(self, kind: Kind, call: int = 0, payload: bytes = b"") -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, encode_message(kind, call, payload))

    async def open(self, call: int, tool_id: int, deadline_ms: int = 30_000) -> None:
        await self.send(Kind.OPEN, call, Open(tool_id, deadline_ms).pack())

    async def receive(self) -> Message | None:
        """The next message; None once the host has hung up."""
        while not self._received:
            data = await asyncio.get_running_loop().sock_recv(self._sock, 65536)
            if not data:
                return None
            self._received += self._envelope.feed(data)
        return self._received.pop(0)


def with_host(
    limits: HostLimits | None = None, *, is_greeted: bool = True
) -> Callable[[Callable[[Peer], Awaitable[None]]], Callable[[], None]]:
    """Run a test against a host in this very process, which must end when the client hangs up."""

    def decorate(test: Callable[[Peer], Awaitable[None]]) -> Callable[[], None]:
        async def main() -> None:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            host = asyncio.create_task(serve(theirs, REGISTRY.tools, limits or HostLimits()))
            peer = Peer(ours)
            hello = await peer.receive()
            assert hello is not None
            assert hello.kind is Kind.HELLO
            if is_greeted:
                await peer.send(Kind.HELLO, 0, GREETING)
            await test(peer)
            ours.close()
            await host

        def run() -> None:
            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorate


async def receive_error(peer: Peer) -> tuple[int, ErrorCode, str]:
    message = await peer.receive()
    assert message is not None
    assert message.kind is Kind.ERROR
    error = Error.unpack(message.payload)
    return message.call, error.code, error.text


def test_the_hello_lists_the_tools_with_their_schemas() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        host = asyncio.create_task(serve(theirs, REGISTRY.tools, HostLimits()))
        hello = await Peer(ours).receive()
        assert hello is not None
        tools = Hello.unpack(hello.payload).body["tools"]
        assert [spec["name"] for spec in tools] == ["echo", "hang", "wait_at_the_gate"]
        assert tools[0]["tool_id"] == ECHO.tool_id
        assert tools[0]["parameters"] == ECHO.parameters
        ours.close()
        await host

    asyncio.run(main())


@with_host()
async def test_a_call_ends_with_one_result(peer: Peer) -> None:
    await peer.open(1, ECHO.tool_id)
    await peer.send(Kind.CALL, 1, ECHO_HI)
    assert await peer.receive() == Message(Kind.RESULT, 1, Result("text/plain", b"hi").pack())
    await peer.send(Kind.CANCEL, 1)
    await peer.send(Kind.PING, 9, b"still there?")
    assert await peer.receive() == Message(Kind.PONG, 9, b"still there?")


@with_host()
async def test_a_call_cancelled_before_its_frame_ends_once(peer: Peer) -> None:
    await peer.open(1, ECHO.tool_id)
    await peer.send(Kind.CANCEL, 1)
    await peer.send(Kind.CANCEL, 1)
    await peer.send(Kind.CALL, 1, ECHO_HI)
    await peer.send(Kind.PING)
    assert await receive_error(peer) == (1, ErrorCode.CANCELLED, "cancelled")
    assert await peer.receive() == Message(Kind.PONG, 0, b"")


@with_host()
async def test_a_running_call_is_cancelled(peer: Peer) -> None:
    await peer.open(1, HANG.tool_id)
    await peer.send(Kind.CALL, 1, HANG_NOW)
    await peer.send(Kind.CANCEL, 1)
    assert await receive_error(peer) == (1, ErrorCode.CANCELLED, "cancelled")


@with_host()
async def test_the_deadline_counts_from_the_frame(peer: Peer) -> None:
    await peer.open(1, HANG.tool_id, deadline_ms=20)
    await peer.open(2, HANG.tool_id, deadline_ms=1)
    await peer.send(Kind.CALL, 1, HANG_NOW)
    assert await receive_error(peer) == (1, ErrorCode.TIMED_OUT, "timed out after 0.02 s")
    await peer.send(Kind.CANCEL, 2)
    assert await receive_error(peer) == (2, ErrorCode.CANCELLED, "cancelled")


@with_host(HostLimits(max_open_calls=1))
async def test_one_open_call_too_many_is_refused(peer: Peer) -> None:
    await peer.open(1, ECHO.tool_id)
    await peer.open(2, ECHO.tool_id)
    assert await receive_error(peer) == (2, ErrorCode.OVER_LIMIT, "1 calls are open already")


@with_host()
async def test_an_unknown_tool_ends_its_call_when_it_is_opened(peer: Peer) -> None:
    await peer.open(1, 5)
    assert await receive_error(peer) == (1, ErrorCode.UNKNOWN_TOOL, "no tool has id 0x00000005")


@with_host(is_greeted=False)
async def test_a_client_that_does_not_greet_is_hung_up_on(peer: Peer) -> None:
    await peer.open(1, ECHO.tool_id)
    assert await receive_error(peer) == (0, ErrorCode.BAD_FRAME, "open before hello (at byte 4)")
    assert await peer.receive() is None


@with_host(HostLimits(max_message_bytes=1000))
async def test_a_message_over_the_limit_closes_the_connection_and_names_it(peer: Peer) -> None:
    await peer.open(1, ECHO.tool_id)
    await peer.send(Kind.CALL, 1, bytes(2000))
    message = "message of 2009 bytes; the limit is 1000 (at byte 0)"
    assert await receive_error(peer) == (0, ErrorCode.BAD_FRAME, message)
    assert await peer.receive() is None


@pytest.mark.parametrize(
    ("kind", "call", "payload", "fault"),
    [
        (Kind.CALL, 7, ECHO_HI, "call 7 is not open"),
        (Kind.OPEN, 0, bytes(8), "call 0 after call 0"),
        (Kind.OPEN, 1, b"", "open of 0 bytes"),
        (Kind.RESULT, 1, b"", "result is not for a tool host"),
    ],
)
def test_messages_out_of_place_close_the_connection(kind: Kind, call: int, payload: bytes, fault: str) -> None:
    @with_host()
    async def is_closed(peer: Peer) -> None:
        await peer.send(kind, call, payload)
        number, _, text = await receive_error(peer)
        assert number == 0
        assert fault in text
        assert await peer.receive() is None

    is_closed()


@with_host()
async def test_hanging_up_ends_the_running_calls(peer: Peer) -> None:
    await peer.open(1, HANG.tool_id)
    await peer.send(Kind.CALL, 1, HANG_NOW)
    await peer.send(Kind.PING)
    assert await peer.receive() == Message(Kind.PONG, 0, b"")


@with_host(HostLimits(max_message_bytes=1000))
async def test_a_result_that_no_message_holds_is_an_error(peer: Peer) -> None:
    frame = btif.encode(ECHO.tool_id, btif.Layout.of(ECHO.parameters), '{"text":"' + "x" * 981 + '"}')
    await peer.open(1, ECHO.tool_id)
    await peer.send(Kind.CALL, 1, frame)
    number, code, text = await receive_error(peer)
    assert (number, code) == (1, ErrorCode.OVER_LIMIT)
    assert "the limit is 1000" in text


@with_host(HostLimits(max_abandoned=1, stop_grace_s=0.01))
async def test_a_worn_out_host_ends_what_runs_and_refuses_the_rest(peer: Peer) -> None:
    await peer.open(1, HANG.tool_id)
    await peer.send(Kind.CALL, 1, HANG_NOW)
    await peer.open(2, ECHO.tool_id)
    await peer.open(3, WAIT.tool_id, deadline_ms=1)
    await peer.send(Kind.CALL, 3, struct.pack(">IH", WAIT.tool_id, 0))
    assert await receive_error(peer) == (3, ErrorCode.TIMED_OUT, "timed out after 0.001 s")
    goodbye = "this tool host is shutting down"
    assert await receive_error(peer) == (0, ErrorCode.SHUTTING_DOWN, goodbye)
    assert await receive_error(peer) == (2, ErrorCode.SHUTTING_DOWN, goodbye)
    await peer.open(4, ECHO.tool_id)
    assert await receive_error(peer) == (4, ErrorCode.SHUTTING_DOWN, goodbye)
    await peer.send(Kind.CANCEL, 1)
    assert await receive_error(peer) == (1, ErrorCode.CANCELLED, "cancelled")
    GATE.set()
