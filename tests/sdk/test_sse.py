"""Owns the tests of the event stream parser: every cut gives the same payloads. Needs no server."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import ProtocolError
from midstream.sdk.sse import SseParser

STREAM = (
    b"\xef\xbb\xbf: hello\n\n"
    b'data: {"a": "\xc3\xa9\xf0\x9f\x98\x80\xe2\x80\xa8"}\n\n'
    b"data:no space\r\n\r\n"
    b"event: status\r\nid: 7\r\ndata: one\r\ndata:  two\r\ndata\r\n\r\n"
    b": ping\r\rdata: by cr\r\r"
    b"retry: 10\n\n\n\n"
    b"datax: no\ndata : no\n\n"
    b"data:\n\n"
    b"data: a: b\n\n"
    b"data: [DONE]\n\n"
)
PAYLOADS = ['{"a": "é😀\u2028"}', "no space", "one\n two\n", "by cr", "a: b", "[DONE]"]


def parse(pieces: list[bytes]) -> list[str]:
    parser = SseParser()
    payloads = [payload for piece in pieces for payload in parser.feed(piece)]
    return payloads + parser.finish()


def cut(data: bytes, *positions: int) -> list[bytes]:
    bounds = [0, *sorted(positions), len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds)]


def test_whole_stream() -> None:
    assert parse([STREAM]) == PAYLOADS


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_pieces_of_one_size(size: int) -> None:
    assert parse(cut(STREAM, *range(size, len(STREAM), size))) == PAYLOADS


def test_every_cut_in_two() -> None:
    for position in range(len(STREAM) + 1):
        assert parse(cut(STREAM, position)) == PAYLOADS, position


def test_every_cut_in_three() -> None:
    for first in range(len(STREAM) + 1):
        for second in range(first, min(first + 6, len(STREAM)) + 1):
            assert parse(cut(STREAM, first, second)) == PAYLOADS, (first, second)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_any_bytes_in_any_cut(data: bytes, positions: list[int]) -> None:
    assert parse(cut(data, *(min(p, len(data)) for p in positions))) == parse([data])


@given(
    st.lists(st.sampled_from([b"data: x", b"data:", b":", b"\r", b"\n", b"\xc3", b"\xa9", b"\xef\xbb\xbf"])),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_awkward_bytes_in_any_cut(parts: list[bytes], positions: list[int]) -> None:
    data = b"".join(parts)
    assert parse(cut(data, *(min(p, len(data)) for p in positions))) == parse([data])


def test_payload_comes_with_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\n") == []
    assert parser.feed(b"\n") == ["x"]


def test_cr_ends_the_event_without_waiting_for_a_line_feed() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\r\r") == ["x"]
    assert parser.feed(b"\ndata: y\n\n") == ["y"]


def test_empty_feed_between_cr_and_lf_changes_nothing() -> None:
    assert parse([b"data: x\r", b"", b"\ndata: y\r\n\r\n"]) == ["x\ny"]


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    assert parse([b"data: a\xffb\n\n"]) == ["a\ufffdb"]


def test_bom_is_skipped_only_at_the_start() -> None:
    assert parse([b"\n\xef\xbb\xbfdata: x\n\n"]) == []


def test_end_of_stream_gives_the_event_that_lacks_its_blank_line() -> None:
    assert parse([b"data: [DONE]"]) == ["[DONE]"]
    assert parse([b"data: x\n"]) == ["x"]


def test_event_past_the_limit_is_an_error() -> None:
    for event in (b"data: " + b"x" * 50, b"data: xxxxx\n" * 8):
        parser = SseParser(max_event_bytes=64)
        assert parser.feed(event) == []
        with pytest.raises(ProtocolError, match="the limit is 64"):
            parser.feed(event)


def test_many_small_events_are_no_large_one() -> None:
    parser = SseParser(max_event_bytes=64)
    assert parser.feed(b"data: xxxxx\n\n" * 20) == ["xxxxx"] * 20
