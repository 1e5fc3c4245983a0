"""Owns the engine's end of the socket to the gateway. Never blocks on a reader that is slow."""

import select
import socket

import msgspec

from midstream.messages import Command, Commands, SequenceOutput, StepOutput
from midstream.protocol.framing import FrameReader, encode_frame

_RECEIVE_BYTES = 1 << 20


class SocketPort:
    """Commands in, one message a step out. Outputs that the gateway cannot take yet wait and go as one message.

    What waits is bounded by what the open requests may still generate.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reader = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(Commands)
        self._unsent = memoryview(b"")
        self._waiting: list[SequenceOutput] = []
        self._latest: StepOutput | None = None

    def receive(self) -> list[Command]:
        """Raises EOFError when the gateway has gone."""
        commands: list[Command] = []
        while (data := self._read()) is not None:
            if not data:
                raise EOFError("the gateway closed its end")
            for body in self._reader.feed(data):
                commands += self._decoder.decode(body).commands
        return commands

    def wait(self) -> None:
        while True:
            has_unsent = bool(self._unsent) or self._latest is not None
            readable, _, _ = select.select([self._sock], [self._sock] if has_unsent else [], [])
            if has_unsent:
                self._flush()
            if readable:
                return

    def send(self, output: StepOutput) -> None:
        self._waiting += output.outputs
        self._latest = output
        self._flush()

    def _flush(self) -> None:
        if self._unsent and not self._write():
            return
        if self._latest is not None:
            self._unsent = memoryview(encode_frame(StepOutput(self._waiting, self._latest.stats)))
            self._waiting, self._latest = [], None
            self._write()

    def _read(self) -> bytes | None:
        try:
            return self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    def _write(self) -> bool:
        """True when nothing is left to write."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return False
        except ConnectionError as error:
            raise EOFError("the gateway closed its end") from error
        return True
