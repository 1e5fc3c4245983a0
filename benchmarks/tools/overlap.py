"""Owns the overlap workload: k independent calls, in an agent loop of an ordinary client and in one stream of ours.

The loop asks for one call, runs the tool, sends everything back and asks for the next; llama.cpp, whose model makes no
call by itself, is held to one by a JSON schema. In one stream the calls are asked for by name, side by side.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.load import Stream, run_streams
from benchmarks.prompts import chat_body
from benchmarks.servers import Server
from benchmarks.tools.wait_tools import PLACES
from openai import AsyncOpenAI

ANSWER_TOKENS = 32
"""An answer that goes on for longer counts as ended here, on both sides."""
CALL_TOKENS = 48
STREAM_TOKENS = 1200
TALK_TOKENS = 100
_SYSTEM = "You look up temperatures. Answer in one short sentence."


def question(num_calls: int) -> str:
    return f"How warm is it in {', '.join(PLACES[:num_calls])}?"


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def tool_of(name: str) -> dict[str, Any]:
    """The tool as a client declares it."""
    parameters = {
        "type": "object",
        "properties": {"place": {"type": "string", "enum": list(PLACES)}},
        "required": ["place"],
        "additionalProperties": False,
    }
    function = {"name": name, "description": "Get the temperature of a place.", "parameters": parameters}
    return {"type": "function", "function": function}


# --- the agent loop of an ordinary client ---

AskOne = Callable[[AsyncOpenAI, str, list[Any], str], Awaitable[tuple[list[Any], str]]]
"""One call: (client, model, messages so far, the tool's name) → (messages with it, its place)."""


async def ask_llama(client: AsyncOpenAI, model: str, messages: list[Any], name: str) -> tuple[list[Any], str]:
    schema = {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": tool_of(name)["function"]["parameters"]},
        "required": ["name", "arguments"],
    }
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "call", "strict": True, "schema": schema}}
    answer = await client.chat.completions.create(
        model=model, messages=messages, max_tokens=CALL_TOKENS, temperature=0, response_format=response_format
    )
    text = answer.choices[0].message.content or ""
    return [*messages, {"role": "assistant", "content": text}], str(json.loads(text)["arguments"]["place"])


async def ask_midstream(client: AsyncOpenAI, model: str, messages: list[Any], name: str) -> tuple[list[Any], str]:
    tools: Any = [tool_of(name)]
    choice: Any = named(name)
    answer: Any = await client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=CALL_TOKENS,
        temperature=0,
        tools=tools,
        tool_choice=choice,
    )
    message = answer.choices[0].message
    return [*messages, message.model_dump(exclude_none=True)], json.loads(message.tool_calls[0].function.arguments)[
        "place"
    ]


async def agent_loop(server: Server, ask: AskOne, num_calls: int, delay_ms: int) -> float:
    """Seconds from the first request to the end of the answer."""
    name = f"look_up_{delay_ms}"
    messages: list[Any] = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question(num_calls)}]
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    async with client:
        start_s = time.monotonic()
        for _ in range(num_calls):
            messages, place = await ask(client, server.model, messages, name)
            await asyncio.sleep(delay_ms / 1000)
            messages.append(_result(messages[-1], place))
        await client.chat.completions.create(
            model=server.model, messages=messages, max_tokens=ANSWER_TOKENS, temperature=0
        )
        return time.monotonic() - start_s


def _result(call: dict[str, Any], place: str) -> dict[str, Any]:
    text = f"{place}: 21 degrees"
    if call.get("tool_calls"):
        return {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": text}
    return {"role": "user", "content": f"Tool result: {text}"}


# --- one stream ---


@dataclass(frozen=True)
class OneStream:
    """What one stream took, and the least that it could have taken."""

    took_s: float
    bound_s: float
    """The longest way through one call: its dispatch, its tool's time, and what is decoded after the last result."""
    wait_s: float
    """The longest that a result waited to be put in: inline for the others, interleaved for a sentence's end."""
    tools_beside_tools_s: float
    """The tools' times less the time in which any of them ran."""
    tools_beside_decode_s: float
    """The time in which a tool ran and the model wrote."""

    @property
    def distance(self) -> float:
        return self.took_s / self.bound_s - 1


async def one_stream(server: Server, mode: str, num_calls: int, delay_ms: int) -> OneStream:
    name = f"look_up_{delay_ms}"
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question(num_calls)}]
    body = chat_body(
        server.model,
        messages,
        STREAM_TOKENS,
        server_tools=[name],
        tool_choice=[named(name)] * num_calls,
        tool_mode=mode,
    )
    [stream] = await run_streams(server.port, [body])
    return _measured(stream, delay_ms / 1000)


def _measured(stream: Stream, delay_s: float) -> OneStream:
    times: dict[str, dict[str, float]] = {}
    for time_s, call in stream.events:
        times.setdefault(call["id"], {}).setdefault(call["state"], time_s)
    waits_s = [each["injected"] - each["done"] for each in times.values()]
    last_injected_s = max(each["injected"] for each in times.values())
    answer = [time_s for time_s in stream.token_times_s if time_s >= last_injected_s]
    end_s = answer[:ANSWER_TOKENS][-1] if answer else stream.events[-1][0]
    ready_s = max(each["running"] + delay_s for each in times.values())
    spans = [(each["running"], each["done"]) for each in times.values()]
    covered_s = _covered(spans)
    writing = _writing(stream)
    return OneStream(
        took_s=end_s - stream.sent_s,
        bound_s=ready_s - stream.sent_s + (end_s - last_injected_s),
        tools_beside_tools_s=sum(end - start for start, end in spans) - covered_s,
        wait_s=max(waits_s),
        tools_beside_decode_s=covered_s + _covered(writing) - _covered(spans + writing),
    )


_PAUSE_S = 0.05
"""A longer silence of the model is none of its writing."""


def _writing(stream: Stream) -> list[tuple[float, float]]:
    """When the model wrote: between signs of it that follow each other closely."""
    signs = sorted([*stream.token_times_s, *(time_s for time_s, call in stream.events if call["state"] != "done")])
    return [(a, b) for a, b in itertools.pairwise(signs) if b - a < _PAUSE_S]


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


async def hidden_share(server: Server, delay_ms: int) -> float:
    """Of the time that could be hidden, how much was: one call, then `TALK_TOKENS` of talk, interleaved."""
    name = f"look_up_{delay_ms}"
    body = chat_body(
        server.model,
        [{"role": "user", "content": "How warm is it in Bern? Tell me about the place, too."}],
        CALL_TOKENS + TALK_TOKENS,
        server_tools=[name],
        tool_choice=named(name),
        tool_mode="interleaved",
        ignore_eos=True,
    )
    [stream] = await run_streams(server.port, [body])
    [running_s] = [time_s for time_s, call in stream.events if call["state"] == "running"]
    [done_s] = [time_s for time_s, call in stream.events if call["state"] == "done"]
    talk = [time_s for time_s in stream.token_times_s if time_s > running_s]
    hidden_s = min(done_s, talk[-1]) - running_s
    return hidden_s / min(done_s - running_s, talk[-1] - running_s)
