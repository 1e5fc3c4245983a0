"""Owns the reading and writing of envelope messages on a stream socket. Knows no call."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Self

from midstream.protocol.envelope import EnvelopeReader, Kind, Message, encode_message

_READ_BYTES = 256 * 1024


class Channel:
    """One end of a connection. A peer that is gone ends `messages`; sending to it does nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_message_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self._max_message_bytes = max_message_bytes

    @classmethod
    async def over(cls, sock: socket.socket, max_message_bytes: int) -> Self:
        """Takes the socket over: it is closed at the end, and where this fails."""
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock)
        except BaseException:
            sock.close()
            raise
        return cls(reader, writer, max_message_bytes)

    async def messages(self) -> AsyncIterator[Message]:
        """Messages until the peer is gone. Raises EnvelopeError."""
        envelope = EnvelopeReader(self._max_message_bytes)
        while data := await self._read():
            for message in envelope.feed(data):
                yield message

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_READ_BYTES)
        except ConnectionError:
            return b""

    def send(self, kind: Kind, call: int, payload: bytes = b"") -> None:
        """Queue a message. Raises EnvelopeError where it is over the limit."""
        data = encode_message(kind, call, payload, self._max_message_bytes)
        if not self._writer.is_closing():
            self._writer.write(data)

    @property
    def is_congested(self) -> bool:
        """The peer reads slower than we write: leave out what can be left out."""
        return self._writer.transport.get_write_buffer_size() > _READ_BYTES

    async def drain(self) -> None:
        """Wait until the peer has read enough for more to be queued."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return

    def hang_up(self) -> None:
        """Close, without waiting, once what is queued has been sent."""
        self._writer.close()

    async def abort(self) -> None:
        """Close without sending what is queued."""
        self._writer.transport.abort()
        await self.close()
