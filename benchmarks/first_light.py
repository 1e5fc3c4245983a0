"""Measure a running server the way a client sees it: time to first token, tokens a second, a tool call's times.

    python benchmarks/first_light.py [--url http://127.0.0.1:8000] [--json]

Prints medians and spreads over several runs. Loads are bounded: at most 8 streams of 64 tokens at a time.
"""

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import httpx2

RUNS = 5
TOKENS = 64


async def timed_stream(client: httpx2.AsyncClient, body: dict[str, Any]) -> list[float]:
    """Seconds from the request to each of its content chunks."""
    start_s = time.perf_counter()
    times = []
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {") and '"content":' in line:
                times.append(time.perf_counter() - start_s)  # noqa: PERF401
    return times


def chat(model: str, text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "temperature": 0, "stream": True} | fields


async def decode_rate(client: httpx2.AsyncClient, model: str, num_streams: int, run: int) -> tuple[float, float]:
    """(median seconds to the first token, tokens a second of all streams together after it)."""
    bodies = [
        chat(model, f"{run}-{i}: write about the sea and the wind.", max_tokens=TOKENS, ignore_eos=True)
        for i in range(num_streams)
    ]
    start_s = time.perf_counter()
    streams = await asyncio.gather(*(timed_stream(client, body) for body in bodies))
    first_s = max(times[0] for times in streams)
    took_s = time.perf_counter() - start_s - first_s
    return statistics.median(times[0] for times in streams), num_streams * (TOKENS - 1) / took_s


async def tool_call(client: httpx2.AsyncClient, model: str, choice: Any) -> dict[str, float]:
    """Seconds from the request to each state of its one server call, and to the answer's first word after it."""
    body = chat(
        model,
        "What is the on-time rate of PVG?",
        server_tools=["on_time_rate"],
        tool_choice=choice,
        parallel_tool_calls=False,
    )
    start_s = time.perf_counter()
    times: dict[str, float] = {}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if "event" in chunk:
                times.setdefault(chunk["event"]["data"]["call"]["state"], time.perf_counter() - start_s)
            elif chunk["choices"][0]["delta"].get("content"):
                times.setdefault("answer", time.perf_counter() - start_s)
    return times


async def metric(client: httpx2.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"midstream:{name}"))


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


async def measure(url: str) -> dict[str, Any]:
    async with httpx2.AsyncClient(base_url=url, timeout=300) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        await decode_rate(client, model, 1, -1)  # warm-up
        rows: dict[str, Any] = {}
        for num_streams in (1, 8):
            results = [await decode_rate(client, model, num_streams, run) for run in range(RUNS)]
            rows[f"ttft_s, {num_streams} streams"] = spread([first for first, _ in results])
            rows[f"tokens/s, {num_streams} streams"] = spread([rate for _, rate in results])
        for choice in ("required", {"type": "function", "function": {"name": "on_time_rate"}}):
            name = choice if isinstance(choice, str) else "named"
            calls = [await tool_call(client, model, choice) for _ in range(RUNS)]
            for state in ("routed", "running", "done", "answer"):
                rows[f"{name}: seconds to {state}"] = spread([call[state] for call in calls])
        for what in ("passes_to_route", "passes_to_dispatch", "dispatch_overhead_seconds"):
            total, count = await metric(client, f"tool_{what}_sum"), await metric(client, f"tool_{what}_count")
            rows[f"{what}, mean"] = {"median": total / count}
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments.url))
    if arguments.json:
        print(json.dumps(rows))
        return
    for name, values in rows.items():
        print(f"{name:40} " + "   ".join(f"{key} {value:.4f}" for key, value in values.items()))


if __name__ == "__main__":
    main()
