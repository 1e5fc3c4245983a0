"""Clients that go away: their work ends within one step, and nothing of them stays."""

import asyncio
import json
import os
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from midstream.modelfile.tokenizer import Tokenizer
from tests.gateway.serving import CHAT, COMPLETE, HELLO, WEATHER, Serving, chat_body, completion_body, serving, wait_for


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Serving]:
    with serving(tokenizer, max_num_seqs=4) as served:
        yield served


@pytest.fixture(autouse=True)
def _gates_are_open_again(served: Serving) -> Iterator[None]:
    yield
    served.model.open()
    served.tools.open()
    served.step_s = 0.0
    wait_for(served.is_at_rest)


class RawClient:
    """A connection that can be dropped at any moment."""

    def __init__(self, served: Serving, path: str, body: Any, *, num_bytes: int | None = None) -> None:
        host, port = served.server.base_url.removeprefix("http://").split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=10)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        self.sock.sendall((head + data)[:num_bytes])
        self.raw = b""

    def read_until(self, text: bytes) -> None:
        while text not in self.raw:
            data = self.sock.recv(65_536)
            assert data, f"it ended: {self.raw[-200:]!r}"
            self.raw += data

    def leave(self, *, rudely: bool = False) -> None:
        if rudely:  # with a reset instead of a FIN
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def bodies(script: str, **fields: Any) -> list[Any]:
    return [
        pytest.param(CHAT, chat_body(script, stream=True, **fields), id="chat stream"),
        pytest.param(CHAT, chat_body(script, **fields), id="chat"),
        pytest.param(COMPLETE, completion_body(script, stream=True, **fields), id="completion stream"),
        pytest.param(COMPLETE, completion_body(script, **fields), id="completion"),
    ]


@pytest.mark.parametrize("rudely", [False, True], ids=["politely", "rudely"])
@pytest.mark.parametrize(("path", "body"), bodies("long"))
def test_a_client_that_leaves_while_decoding_costs_one_more_step_at_most(
    served: Serving, path: str, body: Any, rudely: bool
) -> None:
    client = RawClient(served, path, body)
    wait_for(lambda: len(served.server.engine.sequences) == 1)
    served.model.shut()
    wait_for(lambda: served.model.num_held)
    num_steps = len(served.runner.steps)
    client.leave(rudely=rudely)
    wait_for(lambda: served.num_open == 0)
    served.model.open()
    wait_for(served.is_at_rest)
    assert len(served.runner.steps) <= num_steps + 1, "it was computed on for nobody"


@pytest.mark.parametrize("n", [1, 3])
def test_every_choice_of_a_request_ends_with_its_client(served: Serving, n: int) -> None:
    served.model.shut()
    client = RawClient(served, CHAT, chat_body("long", stream=True, n=n))
    wait_for(lambda: served.num_open == n)
    client.leave()
    wait_for(lambda: served.num_open == 0)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_cancels_its_running_tool(served: Serving, stream: bool) -> None:
    served.tools.shut()
    served.transport.cancelled.clear()
    client = RawClient(served, CHAT, chat_body("server", stream=stream, server_tools="all"))
    wait_for(lambda: served.server.engine.scheduler.parked)
    assert served.tools.num_held == 1
    client.leave()
    wait_for(served.is_at_rest)
    wait_for(lambda: served.tools.num_held == 0)
    assert len(set(served.transport.cancelled)) == 1
    assert served.metric("tool_calls_finished_total", tool="flight_status", outcome="cancelled") >= 1


def test_a_client_that_leaves_the_queue_is_never_computed(served: Serving) -> None:
    served.step_s = 0.002
    busy = [served.listen("long", max_tokens=100) for _ in range(4)]
    wait_for(lambda: len(served.server.engine.scheduler.running) == 4)
    client = RawClient(served, CHAT, chat_body("hello", stream=True))
    wait_for(lambda: served.server.engine.scheduler.waiting)
    [waiting] = served.server.engine.scheduler.waiting
    client.leave()
    wait_for(lambda: not served.server.engine.scheduler.waiting)
    served.step_s = 0.0
    for listener in busy:
        assert b"[DONE]" in listener.join()
    computed = {request_id for step in served.runner.steps for request_id, _ in step}
    assert waiting.request_id not in computed


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(served: Serving) -> None:
    for num_bytes in (10, 60, 120):
        client = RawClient(served, CHAT, chat_body(), num_bytes=num_bytes)
        client.leave(rudely=True)
    assert served.chat().json()["choices"][0]["message"]["content"] == HELLO


def test_a_client_that_half_closes_its_connection_is_gone(served: Serving) -> None:
    served.model.shut()
    client = RawClient(served, CHAT, chat_body("long", stream=True))
    wait_for(lambda: served.num_open == 1)
    client.sock.shutdown(socket.SHUT_WR)
    wait_for(lambda: served.num_open == 0)
    client.leave()


def test_leaving_is_no_error_of_the_server(served: Serving, caplog: pytest.LogCaptureFixture) -> None:
    with capture_logs() as events:
        for stream in (True, False):
            served.model.shut()
            client = RawClient(served, CHAT, chat_body("long", stream=stream))
            wait_for(lambda: served.num_open == 1)
            client.leave()
            wait_for(lambda: served.num_open == 0)
            served.model.open()
        RawClient(served, CHAT, chat_body(), num_bytes=100).leave()
        wait_for(lambda: not served.server.server.server_state.tasks)
    assert [event["event"] for event in events] == ["request_finished"] * 2
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_fifty_random_disconnects_leave_tasks_and_descriptors_as_before(served: Serving) -> None:
    served.step_s = 0.0005
    dice = random.Random(7)
    requests: list[tuple[str, Any]] = [
        (CHAT, chat_body("long", stream=True)),
        (CHAT, chat_body("long")),
        (CHAT, chat_body("long", stream=True, n=3)),
        (CHAT, chat_body("server", stream=True, server_tools="all")),
        (CHAT, chat_body("mixed", stream=True, server_tools="all", tools=[WEATHER])),
        (COMPLETE, completion_body("long", stream=True, prompt=["[script long]"] * 3)),
        (COMPLETE, completion_body("long")),
    ]
    served.chat()
    before = resting(served)
    clients = []
    for _ in range(50):
        clients.append(RawClient(served, *dice.choice(requests)))
        if dice.random() < 0.5:
            wait_for(lambda: served.num_open or len(clients) > 8)
        if len(clients) > dice.randint(0, 8):
            clients.pop(dice.randrange(len(clients))).leave(rudely=dice.random() < 0.5)
    for client in clients:
        client.leave()
    wait_for(served.is_at_rest)
    wait_for(lambda: resting(served) == before)
    served.server.engine.scheduler.blocks.check([])
    assert served.chat().json()["choices"][0]["message"]["content"] == HELLO


def resting(served: Serving) -> tuple[int, int]:
    return num_tasks(served), len(os.listdir("/proc/self/fd"))


def num_tasks(served: Serving) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return asyncio.run_coroutine_threadsafe(count(), served.server.loop).result(10)
