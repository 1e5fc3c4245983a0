"""The engine's end of the socket: frames in pieces, a gateway that goes, and one that reads slowly."""

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from midstream.engine.port import SocketPort
from midstream.messages import (
    Abort,
    AddRequest,
    Command,
    Commands,
    EngineStats,
    Resume,
    SamplingParams,
    SequenceOutput,
    StepOutput,
    TextDelta,
    TokenCounts,
)
from midstream.protocol.framing import FrameReader, encode_frame

COMMANDS: list[Command] = [
    AddRequest(1, [1, 2, 3], SamplingParams(max_tokens=5, stop=("a",)), salt=b"me"),
    Abort(7),
    Resume(1, [4]),
]


def step_output(number: int, text: str = "") -> StepOutput:
    counts = TokenCounts(1, number, 0, 0, number, number)
    return StepOutput(
        [SequenceOutput(1, [number], [TextDelta(text)], counts)], EngineStats(number, 0, 0, 8, 7, 0, 0, 0, 0, 0)
    )


class Gateway:
    """The other end: blocking, read only when a test says so."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._frames = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(StepOutput)

    def read(self) -> list[StepOutput]:
        """The messages that the next piece of the stream completes."""
        return [self._decoder.decode(body) for body in self._frames.feed(self.sock.recv(1 << 20))]

    def read_until(self, last_number: int) -> list[StepOutput]:
        messages: list[StepOutput] = []
        while not (messages and messages[-1].outputs[-1].token_ids == [last_number]):
            messages += self.read()
        return messages


@pytest.fixture
def ends() -> Iterator[tuple[SocketPort, Gateway]]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    theirs.settimeout(10)
    with ours, theirs:
        yield SocketPort(ours), Gateway(theirs)


def test_commands_come_in_order_and_nothing_to_read_is_no_command(ends: tuple[SocketPort, Gateway]) -> None:
    port, gateway = ends
    assert port.receive() == []
    gateway.sock.sendall(encode_frame(Commands(COMMANDS[:1])) + encode_frame(Commands(COMMANDS[1:])))
    assert port.receive() == COMMANDS
    assert port.receive() == []


def test_a_frame_that_comes_byte_by_byte_is_one_frame(ends: tuple[SocketPort, Gateway]) -> None:
    port, gateway = ends
    data = encode_frame(Commands(COMMANDS))
    received = []
    for position in range(len(data)):
        gateway.sock.sendall(data[position : position + 1])
        received.append(port.receive())
    assert received[:-1] == [[]] * (len(data) - 1)
    assert received[-1] == COMMANDS


def test_a_gateway_that_is_gone_is_an_eof(ends: tuple[SocketPort, Gateway]) -> None:
    port, gateway = ends
    gateway.sock.close()
    with pytest.raises(EOFError):
        port.receive()


def test_a_gateway_that_is_gone_is_an_eof_for_who_sends(ends: tuple[SocketPort, Gateway]) -> None:
    port, gateway = ends
    gateway.sock.close()
    with pytest.raises(EOFError):
        port.send(step_output(1))


def test_a_gateway_that_goes_while_the_engine_waits_wakes_it(ends: tuple[SocketPort, Gateway]) -> None:
    port, gateway = ends
    gateway.sock.shutdown(socket.SHUT_WR)
    port.wait()
    with pytest.raises(EOFError):
        port.receive()


def test_waiting_ends_with_a_command(ends: tuple[SocketPort, Gateway]) -> None:
    port, gateway = ends
    waiting = threading.Thread(target=port.wait, daemon=True)
    waiting.start()
    gateway.sock.sendall(encode_frame(Commands(COMMANDS)))
    waiting.join(10)
    assert not waiting.is_alive()
    assert port.receive() == COMMANDS


def test_a_step_is_one_message(ends: tuple[SocketPort, Gateway]) -> None:
    port, gateway = ends
    port.send(step_output(1))
    assert gateway.read() == [step_output(1)]
    port.send(step_output(2))
    assert gateway.read() == [step_output(2)]


def test_a_slow_reader_never_blocks_the_engine_and_gets_what_it_missed_as_one_message(
    ends: tuple[SocketPort, Gateway],
) -> None:
    port, gateway = ends
    text = "x" * 1000
    for number in range(1, 201):
        port.send(step_output(number, text))  # 200 KB through a buffer of 8: blocking would hang here
    flushing = threading.Thread(target=port.wait, daemon=True)
    flushing.start()
    messages = gateway.read_until(200)
    gateway.sock.sendall(encode_frame(Commands([])))
    flushing.join(10)
    assert not flushing.is_alive()
    outputs = [output for message in messages for output in message.outputs]
    assert [output.token_ids for output in outputs] == [[number] for number in range(1, 201)], "nothing is dropped"
    assert len(messages) < 40
    assert len(messages[-1].outputs) > 150
    assert messages[-1].stats.num_running == 200, "the stats are the latest"


def test_a_gateway_that_goes_with_messages_unread_is_an_eof_for_who_waits(ends: tuple[SocketPort, Gateway]) -> None:
    port, gateway = ends
    for number in range(100):
        port.send(step_output(number, "x" * 1000))
    gateway.sock.close()
    with pytest.raises(EOFError):
        serve(port)


def serve(port: SocketPort) -> None:
    while True:
        port.wait()
        port.receive()
