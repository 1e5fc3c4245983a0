"""Owns the tool-call workload: the seed's `flight_status`, asked for in 20 wordings. Judges no answer."""

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.load import Stream, run_streams
from benchmarks.prompts import chat_body
from benchmarks.servers import Profile, Server, midstream

from benchmarks import names

Figures = dict[str, list[float]]
Marks = dict[str, dict[str, int]]
"""What `traced_server.py` noted, by call id."""

NUM_WORDINGS = 20
_AIRPORTS = ("PVG", "HKG", "SIN", "NRT", "LHR", "JFK", "FRA", "CDG", "DXB", "SYD")
_WORDINGS = (
    "How did the departures of {airport} go on {date}?",
    "What was the flight status at {airport} on {date}?",
    "Were flights from {airport} on time on {date}?",
    "Tell me about delays at {airport} on {date}.",
    "On {date}, how many flights left {airport} late?",
    "Check {airport} for {date}, please.",
    "I flew out of {airport} on {date}. Was it a bad day?",
    "Give me the departures at {airport} for {date}.",
    "Any cancellations at {airport} on {date}?",
    "Look up {airport} on {date}.",
    "Status of {airport}, {date}?",
    "Could you see how {airport} did on {date}?",
    "For {date}, what do you know about departures from {airport}?",
    "My colleague was stuck in {airport} on {date}; what happened there?",
    "I need the on-time figures of {airport} for {date}.",
    "Was {date} a normal day at {airport}?",
    "Departures {airport} {date}",
    "Please report on {airport}, day {date}.",
    "How long were the delays at {airport} on {date}?",
    "Did {airport} run smoothly on {date}?",
)
_NAMED: Any = {"type": "function", "function": {"name": "flight_status"}}
CHOICES: dict[str, Any] = {"named": _NAMED, "required": "required", "auto": "auto"}
_AUTO_SYSTEM = {
    "role": "system",
    "content": "When you call a function, do not use a code block: "
    "begin your answer with <tool_call> and end it with </tool_call>.",
}
"""Some models write their calls as code blocks unless they are told; those are text."""
_MAX_TOKENS = 64
_TOOLS = ("--tools", "flight_tool:flight_status")


def question(number: int) -> str:
    wording = _WORDINGS[number % NUM_WORDINGS]
    day = f"2026-{1 + number % 12:02d}-{1 + number * 7 % 28:02d}"
    return wording.format(airport=_AIRPORTS[number * 3 % len(_AIRPORTS)], date=day)


def call_body(server: Server, number: int, mode: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question(number)}]
    if mode == "auto":
        messages.insert(0, _AUTO_SYSTEM)
    return chat_body(
        server.model,
        messages,
        _MAX_TOKENS,
        server_tools=["flight_status"],
        tool_choice=CHOICES[mode],
        parallel_tool_calls=False,
    )


async def run(model: Path, modes: list[str], num_calls: int) -> Figures:
    """`num_calls` calls of each mode one after another, then as many 16 at a time."""
    alone: dict[str, list[Stream]] = {}
    crowded: list[Stream] = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        environment = {"BENCH_TRACE_FILE": str(trace)}
        profile = Profile(model, slot_tokens=1024)
        with midstream(profile, *_TOOLS, launcher="traced_server.py", environment=environment) as server:
            await run_streams(server.port, [call_body(server, 99, modes[0])])
            for mode in modes:
                alone[mode] = await _calls(server, mode, num_calls, at_once=1)
                crowded += await _calls(server, mode, num_calls, at_once=16)
        marks: Marks = json.loads(trace.read_text())
    figures = {name: values for mode, streams in alone.items() for name, values in _by_mode(mode, streams, marks)}
    figures[names.overhead(1)] = _overheads_ms([each for streams in alone.values() for each in streams], marks)
    figures[names.overhead(16)] = _overheads_ms(crowded, marks)
    return figures


async def _calls(server: Server, mode: str, num_calls: int, *, at_once: int) -> list[Stream]:
    streams: list[Stream] = []
    for start in range(0, num_calls, at_once):
        numbers = range(start, min(start + at_once, num_calls))
        streams += await run_streams(server.port, [call_body(server, number, mode) for number in numbers])
    return streams


def _by_mode(mode: str, streams: list[Stream], marks: Marks) -> list[tuple[str, list[float]]]:
    running = [(stream.sent_s, *first) for stream in streams if (first := _first(stream, "running"))]
    called = [marks[call["id"]] for _, _, call in running]
    return [
        (f"{mode}: calls dispatched of {len(streams)}", [float(len(running))]),
        (f"{mode}: passes to route", [float(each["routed_pass"]) for each in called]),
        (f"{mode}: passes to dispatch", [float(each["dispatch_pass"]) for each in called]),
        (f"{mode}: request to the tool running, ms", [1000 * (time_s - sent_s) for sent_s, time_s, _ in running]),
    ]


def _overheads_ms(streams: list[Stream], marks: Marks) -> list[float]:
    """From the last needed token to the function's first line, by two processes' readings of one clock."""
    done = [first[1] for stream in streams if (first := _first(stream, "done"))]
    return [(json.loads(call["result"])["entered_ns"] - marks[call["id"]]["sampled_ns"]) / 1e6 for call in done]


def _first(stream: Stream, state: str) -> tuple[float, dict[str, Any]] | None:
    return next(((time_s, call) for time_s, call in stream.events if call.get("state") == state), None)
