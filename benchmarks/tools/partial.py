"""Owns the partial-execution workload: from the request to the tool's result, its argument read early or whole."""

from typing import Any

from benchmarks.load import run_streams
from benchmarks.prompts import chat_body
from benchmarks.servers import Server

KINDS = ("code", "query", "search")
WAYS = ("streamed", "whole")
_MAX_TOKENS = 400


async def times_to_result_s(server: Server, kind: str, way: str, number: int) -> tuple[float, float]:
    """Seconds to the tool's result, from the request and from the call's end."""
    name = f"{kind}_{way}"
    choice: Any = {"type": "function", "function": {"name": name}}
    body = chat_body(
        server.model,
        [{"role": "user", "content": f"Number {number}: do it."}],
        _MAX_TOKENS,
        server_tools=[name],
        tool_choice=choice,
    )
    [stream] = await run_streams(server.port, [body])
    [done_s] = [time_s for time_s, call in stream.events if call["state"] == "done"]
    [running_s] = [time_s for time_s, call in stream.events if call["state"] == "running"]
    return done_s - stream.sent_s, done_s - running_s
