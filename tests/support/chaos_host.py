"""A tool host that misbehaves as its calls tell it to: `python -m tests.support.chaos_host FD`."""

import asyncio
import os
import socket
import sys

from midstream.protocol.btif import Layout, decode_arguments
from midstream.protocol.envelope import MAX_MESSAGE_BYTES, Kind
from midstream.protocol.payloads import Error, ErrorCode, Hello, Open, Progress, Result
from midstream.tools import tool
from midstream.tools.channel import Channel
from midstream.tools.registry import Tool, tool_of

BEHAVIOURS = ("answers", "fails", "hangs", "answers_late", "answers_twice", "reports", "crashes")
TIMEOUT_S = 0.05
LATE_S = 0.02


def _tool_named(name: str) -> Tool:
    def stand_in(number: int) -> str:
        """Do what its name says; the host here does it instead."""
        raise AssertionError("never called")

    made = tool_of(tool(name=name, timeout_s=TIMEOUT_S)(stand_in))
    assert made is not None
    return made


answers, fails, hangs, answers_late, answers_twice, reports, crashes = map(_tool_named, BEHAVIOURS)
SPECS = {made.spec.tool_id: made.spec for made in map(_tool_named, BEHAVIOURS)}


class ChaosHost:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._layout = Layout.of(answers.spec.parameters)
        self._opened: dict[int, Open] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        self._channel.send(Kind.HELLO, 0, Hello({"tools": []}).pack())
        async for message in self._channel.messages():
            match message.kind:
                case Kind.OPEN:
                    self._opened[message.call] = Open.unpack(message.payload)
                case Kind.CALL:
                    self._start(message.call, message.payload)
                case Kind.CANCEL:
                    self._cancel(message.call)

    def _start(self, number: int, frame: bytes) -> None:
        opened = self._opened.pop(number)
        value = decode_arguments(frame, self._layout)["number"]
        task = asyncio.create_task(self._behave(SPECS[opened.tool_id].name, number, value, opened.deadline_ms / 1000))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _cancel(self, number: int) -> None:
        self._opened.pop(number, None)
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()
        self._channel.send(Kind.ERROR, number, Error(ErrorCode.CANCELLED, "cancelled").pack())

    async def _behave(self, name: str, number: int, value: int, deadline_s: float) -> None:
        result = Result("text/plain", f"{name} {value}".encode()).pack()
        late = Error(ErrorCode.TIMED_OUT, "late").pack()
        match name:
            case "fails":
                self._channel.send(Kind.ERROR, number, Error(ErrorCode.TOOL_FAILED, "it failed").pack())
                return
            case "hangs":
                await asyncio.sleep(deadline_s)
                self._channel.send(Kind.ERROR, number, late)
                return
            case "answers_late":
                await asyncio.sleep(deadline_s)
                self._channel.send(Kind.ERROR, number, late)
                await asyncio.sleep(LATE_S)
            case "answers_twice":
                self._channel.send(Kind.RESULT, number, result)
            case "reports":
                for percent in (10, 50, 90):
                    self._channel.send(Kind.PROGRESS, number, Progress(percent, "going on").pack())
            case "crashes":
                os._exit(1)
        self._channel.send(Kind.RESULT, number, result)


async def main(fd: int) -> None:
    sock = socket.socket(fileno=fd)
    await ChaosHost(await Channel.over(sock, MAX_MESSAGE_BYTES)).serve()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[-1])))
