"""Ten thousand calls of tools that fail, hang, crash, answer late or twice: nothing is lost, nothing leaks."""

import asyncio
import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from midstream.modelfile.tokenizer import Tokenizer
from midstream.tools.python import PythonTransport
from tests.support.chaos_host import BEHAVIOURS
from tests.support.scripted import ScriptedRunner, Turn
from tests.support.server import RunningServer, running_server
from tests.support.wire import check_chat_stream

NUM_CALLS = 10_000
CALLS_A_STREAM = 5
AT_ONCE = 48
# Out of a thousand calls; a crash fails whatever runs beside it as well.
WEIGHTS = {
    "answers": 600,
    "reports": 100,
    "fails": 100,
    "answers_twice": 100,
    "answers_late": 60,
    "hangs": 37,
    "crashes": 3,
}
SHARE_THAT_LEAVES = 0.03
ENDS = {"done", "failed", "timed_out", "cancelled", "abandoned"}
# What a call may end with, by what its tool does: the host may have died under it, or its tool may be left alone.
MAY_END = {
    "answers": {"done", "failed"},
    "reports": {"done", "failed"},
    "answers_twice": {"done", "failed"},
    "fails": {"failed"},
    "crashes": {"failed"},
    "hangs": {"timed_out", "failed"},
    "answers_late": {"timed_out", "failed"},
}


def script(dice: random.Random, number: int) -> list[Turn]:
    names = dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=CALLS_A_STREAM)
    calls = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {{"number": {number * CALLS_A_STREAM + i}}}}}\n</tool_call>'
        for i, name in enumerate(names)
    ]
    return [["\n".join(calls)], *[["So it is."]] * CALLS_A_STREAM]


def scripts() -> dict[str, list[Turn]]:
    dice = random.Random(4)
    return {str(number): script(dice, number) for number in range(NUM_CALLS // CALLS_A_STREAM)}


class Tally:
    """What became of the calls."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.num_streams = 0
        self.num_left = 0


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[RunningServer]:
    transport = PythonTransport(
        [sys.executable, "-m", "tests.support.chaos_host"], grace_s=1.0, backoff_s=0.01, max_backoff_s=0.05
    )
    runner = ScriptedRunner(tokenizer, scripts())
    modules = ("tests.support.chaos_host",)
    with running_server(
        tokenizer, lambda: runner, transport=transport, tools=modules, num_blocks=4096, tool_budget_s=1000
    ) as server:
        yield server


async def one(server: RunningServer, client: httpx2.AsyncClient, number: int, tally: Tally) -> None:
    dice = random.Random(number)
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": f"[script {number}]"}],
        "temperature": 0,
        "stream": True,
        "server_tools": "all",
        "tool_mode": dice.choice(["inline", "interleaved"]),
    }
    url = f"{server.base_url}/v1/chat/completions"
    if dice.random() < SHARE_THAT_LEAVES:
        async with client.stream("POST", url, json=body) as response:
            async for _ in response.aiter_bytes():
                tally.num_left += 1
                return
    response = await client.post(url, json=body)
    assert response.status_code == 200, response.text
    transcript = check_chat_stream(response.content)
    assert transcript.finish_reason == "stop"
    by_id: dict[str, list[dict[str, Any]]] = {}
    for _, data in transcript.events:
        by_id.setdefault(data["call"]["id"], []).append(data["call"])
    assert len(by_id) == CALLS_A_STREAM
    for calls in by_id.values():
        states = [call["state"] for call in calls]
        ends = [state for state in states if state in ENDS]
        assert len(ends) == 1, states
        assert states[-1] == "injected", "the model has every outcome"
        name = calls[0]["name"]
        assert ends[0] in MAY_END[name], (name, calls)
        if ends[0] == "done":
            [done] = [call for call in calls if call["state"] == "done"]
            assert done["result"] == f"{name} {done['arguments']['number']}", "the answer of another call"
        tally.outcomes[name, ends[0]] += 1
    tally.num_streams += 1


async def all_streams(server: RunningServer, tally: Tally) -> None:
    numbers = iter(range(NUM_CALLS // CALLS_A_STREAM))

    async def worker(client: httpx2.AsyncClient) -> None:
        for number in numbers:
            await one(server, client, number, tally)

    limits = httpx2.Limits(max_connections=AT_ONCE)
    async with httpx2.AsyncClient(timeout=60, limits=limits) as client, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker(client))


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def num_tasks() -> int:
    names = ("tool ", "run ", "tool result")
    return sum(task.get_name().startswith(names) for task in asyncio.all_tasks())


def test_ten_thousand_calls_end_each_in_one_way(server: RunningServer) -> None:
    tally = Tally()
    num_files = num_open_files()
    num_free = server.engine.scheduler.blocks.num_free
    asyncio.run(all_streams(server, tally))
    assert tally.num_streams + tally.num_left == NUM_CALLS // CALLS_A_STREAM
    assert tally.num_left > 0
    assert {name for name, _ in tally.outcomes} == set(BEHAVIOURS)
    num_done = sum(number for (_, state), number in tally.outcomes.items() if state == "done")
    assert num_done > 0.6 * sum(tally.outcomes.values()), tally.outcomes
    _wait_for(lambda: not server.engine.sequences)
    assert server.engine.scheduler.blocks.num_free == num_free
    assert server.gateway.services.engine.num_open == 0
    _wait_for(lambda: asyncio.run_coroutine_threadsafe(num_tasks(), server.loop).result(10) == 0)
    gc.collect()
    _wait_for(lambda: num_open_files() <= num_files + 8)
    metric = server.metric
    num_routed = sum(metric("tool_calls_routed_total", tool=name) for name in BEHAVIOURS)
    num_finished = sum(
        metric("tool_calls_finished_total", tool=name, outcome=end) for name in BEHAVIOURS for end in ENDS
    )
    assert num_routed == num_finished


def _wait_for(condition: Any, limit_s: float = 15) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
