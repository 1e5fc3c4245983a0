"""Tests of the load client's parser: when a token came does not depend on how its bytes were cut."""

import json
from typing import Any

import pytest
from benchmarks.load import LoadError, Read, Stream, decode_rate, parse_frames, parse_stream, whole_rate

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(body: Any) -> bytes:
    data = b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def text(content: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content}, "finish_reason": finish}]}


ANSWER = [
    HEAD,
    chunk(text(None)),
    chunk(text("two")),
    chunk(text(" words")),
    chunk(text("", "length")),
    chunk({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}),
    chunk(b"[DONE]") + b"0\r\n\r\n",
]


def reads_of(parts: list[bytes]) -> list[Read]:
    return [(float(time_s), part) for time_s, part in enumerate(parts)]


def stream(times_s: list[float], num_tokens: int) -> Stream:
    return Stream(0.0, tuple(times_s), "", {"completion_tokens": num_tokens, "prompt_tokens": 1})


def test_a_frame_has_the_time_of_the_read_that_completed_it() -> None:
    parsed = parse_stream(0.5, reads_of(ANSWER))
    assert parsed.token_times_s == (2.0, 3.0)
    assert parsed.ttft_s == 1.5
    assert parsed.text == "two words"
    assert (parsed.num_prompt_tokens, parsed.num_tokens, parsed.num_cached_tokens) == (5, 3, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 4096])
def test_any_cut_of_the_bytes_gives_the_same_text(size: int) -> None:
    raw = b"".join(ANSWER)
    cuts = [raw[start : start + size] for start in range(0, len(raw), size)]
    assert parse_stream(0.0, reads_of(cuts)).text == "two words"


def test_a_line_over_two_http_chunks_is_one_frame() -> None:
    parts = [HEAD, b"6\r\ndata: \r\n", b"3\r\n{}\n\r\n", b"0\r\n\r\n"]
    [frame] = parse_frames(reads_of(parts))
    assert (frame.data, frame.time_s) == (b"{}", 2.0)


def test_a_body_without_chunks_is_read_too() -> None:
    [frame] = parse_frames([(1.0, b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n")])
    assert frame.data == b"{}"


@pytest.mark.parametrize(
    "reads",
    [
        [],
        [(0.0, b"HTTP/1.1 500 Internal Server Error\r\n\r\nno")],
        [(0.0, HEAD + b"5\r\nda")],
        reads_of([*ANSWER[:3], b"0\r\n\r\n"]),
        reads_of([HEAD, chunk({"error": {"message": "full"}}), b"0\r\n\r\n"]),
    ],
)
def test_what_is_no_whole_stream_is_an_error(reads: list[Read]) -> None:
    with pytest.raises(LoadError):
        parse_stream(0.0, reads)


def test_prefilled_tokens_are_the_servers_count_or_what_was_not_cached() -> None:
    usage = {"prompt_tokens": 50, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 30}}
    assert Stream(0.0, (1.0,), "", usage).num_prefilled_tokens == 20
    assert Stream(0.0, (1.0,), "", usage | {"computed_tokens": 25}).num_prefilled_tokens == 22


def test_the_decode_rate_counts_only_while_all_streams_decode() -> None:
    early, late = stream([1, 2, 3, 4, 5], 5), stream([3, 4, 5, 6, 7], 5)
    assert decode_rate([early, late]) == pytest.approx(4 / 2)
    assert whole_rate([early, late]) == pytest.approx(10 / 7)


def test_a_frame_with_several_tokens_counts_by_the_mean() -> None:
    assert decode_rate([stream([0, 1, 2], 6)]) == pytest.approx(2 * 2 / 2)


def test_streams_that_never_overlap_have_no_rate() -> None:
    with pytest.raises(LoadError):
        decode_rate([stream([0, 1], 2), stream([2, 3], 2)])
