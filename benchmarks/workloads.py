"""Owns what is asked of a server: each workload is one run and gives figures by name. Starts no server.

The units are in the names. Every function deals its prompts from the same generator in the same order, so that
two servers whose runs began with one seed are asked the same.
"""

import asyncio
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.load import (
    LoadError,
    Stream,
    decode_rate,
    finish,
    no_collection,
    run_streams,
    send,
    ttft_p50_s,
    whole_rate,
)
from benchmarks.prompts import Messages, Prompts, chat_body
from benchmarks.servers import Server

from benchmarks import names

Figures = dict[str, float]

SHORT_TOKENS = 40
LONG_TOKENS = 1000
LATE_TOKENS = 2000
_FOLLOW_UP_WORDS = 12
_MIXED_STREAMS = 8
_MIXED_TOKENS = 160
_FRAMES_BEFORE = 24


def body(server: Server, messages: Messages, max_tokens: int) -> dict[str, Any]:
    return chat_body(server.model, messages, max_tokens, **server.fields)


async def warm_up(server: Server, prompts: Prompts) -> None:
    await run_streams(server.port, [body(server, prompts.unique(SHORT_TOKENS), 8)])


async def decode(server: Server, prompts: Prompts, num_streams: int, max_tokens: int) -> Figures:
    """`num_streams` at once, each with a short prompt of its own."""
    bodies = [body(server, prompts.unique(SHORT_TOKENS), max_tokens) for _ in range(num_streams)]
    streams = await run_streams(server.port, bodies)
    check_lengths(streams, max_tokens)
    return {
        names.DECODE: decode_rate(streams),
        names.WHOLE: whole_rate(streams),
        names.TTFT: 1000 * ttft_p50_s(streams),
        names.PROMPT_TOKENS: statistics.mean(stream.num_prompt_tokens for stream in streams),
    }


async def ttft(server: Server, prompts: Prompts, num_requests: int, *, shares_head: bool) -> Figures:
    """One request after another. With a shared head, one more comes first to leave it in the cache."""
    if shares_head:
        name = prompts.name()
        prompt_list = [prompts.headed(name, SHORT_TOKENS) for _ in range(num_requests + 1)]
    else:
        prompt_list = [prompts.unique(SHORT_TOKENS) for _ in range(num_requests)]
    streams = [(await run_streams(server.port, [body(server, prompt, 4)]))[0] for prompt in prompt_list]
    streams = streams[1:] if shares_head else streams
    return {
        names.TTFT: 1000 * ttft_p50_s(streams),
        "cached tokens": statistics.median(stream.num_cached_tokens for stream in streams),
        names.PROMPT_TOKENS: statistics.mean(stream.num_prompt_tokens for stream in streams),
    }


async def prefill(server: Server, prompts: Prompts, num_streams: int) -> Figures:
    """Long prompts at once, to the last one's first token."""
    bodies = [body(server, prompts.unique(LONG_TOKENS), 4) for _ in range(num_streams)]
    streams = await run_streams(server.port, bodies)
    took_s = max(stream.token_times_s[0] for stream in streams) - min(stream.sent_s for stream in streams)
    return {
        names.PREFILL: sum(stream.num_prompt_tokens for stream in streams) / took_s,
        names.TTFT: 1000 * ttft_p50_s(streams),
        names.PROMPT_TOKENS: statistics.mean(stream.num_prompt_tokens for stream in streams),
    }


async def second_turn(server: Server, prompts: Prompts) -> Figures:
    """A long chat, then its next question."""
    messages = prompts.unique(LONG_TOKENS)
    [cold] = await run_streams(server.port, [body(server, messages, 32)])
    messages = [*messages, {"role": "assistant", "content": cold.text}]
    messages.append({"role": "user", "content": prompts.words(_FOLLOW_UP_WORDS)})
    [second] = await run_streams(server.port, [body(server, messages, 4)])
    share = second.num_prefilled_tokens / cold.num_prefilled_tokens
    num_new = second.num_prompt_tokens - cold.num_prompt_tokens - cold.num_tokens
    return {
        names.TTFT_COLD: 1000 * cold.ttft_s,
        names.TTFT_SECOND: 1000 * second.ttft_s,
        "new tokens": num_new,
        names.EXCESS: second.num_prefilled_tokens - num_new,
        names.TTFT_ALLOWED: 1000 * cold.ttft_s * share + 10,
    }


async def mixed(server: Server, prompts: Prompts) -> Figures:
    """A long prompt arrives among streams that decode: what silence do they see?"""
    bodies = [body(server, prompts.unique(SHORT_TOKENS), _MIXED_TOKENS) for _ in range(_MIXED_STREAMS)]
    late_body = body(server, prompts.unique(LATE_TOKENS), 8)
    with no_collection():
        recorders = [await send(server.port, each) for each in bodies]
        while any(len(recorder.reads) < _FRAMES_BEFORE for recorder in recorders):
            if any(recorder.ended.done() for recorder in recorders):
                raise LoadError("a stream ended before the long prompt was sent")
            await asyncio.sleep(0.002)
        late = await send(server.port, late_body)
        *streams, late_stream = await finish([*recorders, late])
    before, after = split_gaps(streams, late.sent_s)
    return {
        "p50 gap before, ms": 1000 * statistics.median(before),
        "longest gap after, ms": 1000 * max(after),
        names.GAP_RATIO: max(after) / statistics.median(before),
        "TTFT of the long prompt, ms": 1000 * late_stream.ttft_s,
        names.PROMPT_TOKENS: late_stream.num_prompt_tokens,
    }


def split_gaps(streams: Sequence[Stream], time_s: float) -> tuple[list[float], list[float]]:
    """Every stream's gaps that ended before a moment, and those that ended after it."""
    gaps = [gap for stream in streams for gap in stream.gaps_s]
    before = [length for end, length in gaps if end <= time_s]
    return before, [length for end, length in gaps if end > time_s]


def check_lengths(streams: Sequence[Stream], max_tokens: int) -> None:
    """Raises LoadError when an answer is shorter than asked for: the runs would not be comparable."""
    shortest = min(stream.num_tokens for stream in streams)
    if shortest < max_tokens:
        raise LoadError(f"an answer has {shortest} tokens; {max_tokens} were asked for")
