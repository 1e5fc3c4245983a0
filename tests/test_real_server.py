"""The real thing under load: three processes, the embedded model, clients that leave, children that are killed."""

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.support.processes import ServerProcess, server_process
from tests.support.wire import Transcript, check_chat_stream

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

QUESTION = "What is the on-time rate of PVG?"
TOOL: dict[str, Any] = {
    "server_tools": ["on_time_rate"],
    "tool_choice": {"type": "function", "function": {"name": "on_time_rate"}},
}
# More than any machine decodes before the test has done what it does.
ENDLESS: dict[str, Any] = {"max_tokens": 7000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--tools", "demo,tests.support.slow_tools") as server:
        yield server


def body(question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": "smollm2-135m", "messages": messages, "temperature": 0, "stream": True} | fields


async def stream(client: httpx2.AsyncClient, request: dict[str, Any]) -> Transcript:
    response = await client.post("/v1/chat/completions", json=request)
    assert response.status_code == 200, response.text
    # On a busy machine a stream may be silent for so long that it gets a comment.
    return check_chat_stream(response.content, allow_comments=True)


def client_of(server: ServerProcess) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx2.AsyncClient(base_url=server.base_url, timeout=120, limits=limits)


def wait_until_idle(server: ServerProcess) -> None:
    deadline = time.monotonic() + 60
    gauges = ("num_requests_running", "num_requests_waiting", "num_requests_parked", "kv_cache_usage_perc")
    while any(server.metric(name) for name in gauges):
        assert time.monotonic() < deadline, "sequences or blocks are left over"
        time.sleep(0.05)


def ask_once(server: ServerProcess) -> None:
    """The next request works."""
    deadline = time.monotonic() + 60
    while httpx2.get(f"{server.base_url}/health").status_code != 200:
        assert time.monotonic() < deadline, "the engine did not come back"
        time.sleep(0.05)
    request = body("Hello", max_tokens=4)
    response = httpx2.post(f"{server.base_url}/v1/chat/completions", json=request, timeout=60)
    assert check_chat_stream(response.content).choices[0].finish_reason in ("stop", "length")


def test_the_openai_client_gets_the_tools_value_in_the_text(server: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
    events, text = [], ""
    chunks: Any = client.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": QUESTION}],
        tool_choice={"type": "function", "function": {"name": "on_time_rate"}},
        temperature=0,
        stream=True,
        extra_body={"server_tools": ["on_time_rate"]},
    )
    for chunk in chunks:
        if not chunk.choices:
            events.append((chunk.event["data"]["call"], text))
        elif chunk.choices[0].delta.content:
            text += chunk.choices[0].delta.content
    states = [call["state"] for call, _ in events]
    assert states == ["routed", "running", "done", "injected"]
    assert '"on_time_rate_percent":77.0' in events[2][0]["result"]
    assert "77" in text
    client.close()


def test_64_streams_at_once_finish_each_with_one_finish_reason(server: ServerProcess) -> None:
    async def main() -> list[Transcript]:
        async with client_of(server) as client:
            requests = [body(f"Tell me about the number {i}.", max_tokens=12) for i in range(64)]
            return list(await asyncio.gather(*(stream(client, request) for request in requests)))

    transcripts = asyncio.run(main())
    assert len(transcripts) == 64
    for transcript in transcripts:
        assert transcript.choices[0].finish_reason in ("stop", "length")
        assert transcript.content
    wait_until_idle(server)


def test_200_random_aborts_leave_nothing_behind(server: ServerProcess) -> None:
    rng = random.Random(7)

    async def leave_early(client: httpx2.AsyncClient, number: int, after_s: float) -> None:
        fields = TOOL if number % 3 == 0 else {}
        request = body(f"{QUESTION} ({number})", max_tokens=200, **fields) | {"stream": number % 2 == 0}
        try:
            async with asyncio.timeout(after_s):
                await client.post("/v1/chat/completions", json=request)
        except TimeoutError:
            pass

    async def main() -> None:
        async with client_of(server) as client:
            waits = [(number, rng.uniform(0.01, 1.5)) for number in range(200)]
            for start in range(0, 200, 50):
                await asyncio.gather(*(leave_early(client, n, s) for n, s in waits[start : start + 50]))

    ask_once(server)
    wait_until_idle(server)
    num_fds = server.num_fds
    asyncio.run(main())
    wait_until_idle(server)
    assert server.num_fds <= num_fds
    assert server.metric("tool_calls_routed_total") == server.metric("tool_calls_finished_total")
    ask_once(server)


def test_a_killed_engine_ends_every_stream_with_an_error_and_the_next_request_works(server: ServerProcess) -> None:
    async def main() -> list[bytes]:
        async with client_of(server) as client:
            tasks = [
                asyncio.create_task(client.post("/v1/chat/completions", json=body(f"Count to {i}.", **ENDLESS)))
                for i in range(8)
            ]
            while await asyncio.to_thread(server.metric, "num_requests_running") < 8:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            server.kill_engine()
            responses = await asyncio.gather(*tasks)
            return [response.content for response in responses]

    pid = server.engine_pid
    for raw in asyncio.run(main()):
        text = raw.decode()
        assert "the engine process died: killed by signal 9" in text
        if text.startswith("data:"):
            assert text.endswith("data: [DONE]\n\n")
            transcript = check_chat_stream(raw)
            assert transcript.error is not None
            assert transcript.error["code"] == "engine_died"
    ask_once(server)
    assert server.engine_pid != pid
    assert any("engine_died" in line and "signal 9" in line for line in server.log), "the log says why"


def test_a_killed_tool_host_is_text_for_the_model_and_the_next_call_works(server: ServerProcess) -> None:
    async def main() -> Transcript:
        name = "sleep_forever"
        choice = {"type": "function", "function": {"name": name}}
        request = body("Wait.", server_tools=[name], tool_choice=choice, max_tokens=60)
        async with client_of(server) as client:
            task = asyncio.create_task(stream(client, request))
            while not await asyncio.to_thread(server.metric, "num_requests_parked"):
                await asyncio.sleep(0.02)
            server.kill_tool_host()
            return await task

    transcript = asyncio.run(main())
    outcomes = [data["call"] for _, data in transcript.events if data["call"]["state"] == "failed"]
    assert len(outcomes) == 1
    assert "died" in outcomes[0]["error"]
    assert transcript.choices[0].finish_reason in ("stop", "length")

    async def again() -> Transcript:
        async with client_of(server) as client:
            return await stream(client, body(QUESTION, **TOOL))

    assert "77" in asyncio.run(again()).content


def test_sigterm_lets_open_streams_finish_and_then_ends() -> None:
    with server_process() as server:

        async def main() -> tuple[Transcript, httpx2.Response]:
            async with client_of(server) as client:
                task = asyncio.create_task(stream(client, body("Count.", max_tokens=400, ignore_eos=True)))
                while not await asyncio.to_thread(server.metric, "num_requests_running"):
                    await asyncio.sleep(0.02)
                server.process.terminate()
                while (refused := await client.get("/health")).status_code == 200:
                    await asyncio.sleep(0.01)
                refused = await client.post("/v1/chat/completions", json=body("Hello"))
                return await task, refused

        transcript, refused = asyncio.run(main())
        assert transcript.choices[0].finish_reason == "length"
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert server.process.wait(20) == 0
