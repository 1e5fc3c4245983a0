import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import EnvelopeError
from midstream.protocol.envelope import EnvelopeReader, Kind, Message, encode_message

MESSAGES = [
    Message(Kind.HELLO, 0, b'\x01{"name":"test"}'),
    Message(Kind.OPEN, 1, bytes(8)),
    Message(Kind.CANCEL, 2**64 - 1, b""),
    Message(Kind.RESULT, 1, b"\x0atext/plain" + b"x" * 50),
]
STREAM = b"".join(encode_message(message.kind, message.call, message.payload) for message in MESSAGES)


def test_a_message_is_length_kind_call_and_payload() -> None:
    assert encode_message(Kind.PARTIAL, 5, b"hi").hex() == "0000000b" + "02" + "0000000000000005" + "6869"


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_cut_anywhere_gives_the_same_messages(cut: int) -> None:
    reader = EnvelopeReader()
    assert reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:]) == MESSAGES


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_number_of_cuts_gives_the_same_messages(cuts: list[int]) -> None:
    reader = EnvelopeReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    assert [message for piece in pieces for message in reader.feed(piece)] == MESSAGES


def test_a_message_over_the_limit_is_refused_at_its_length_alone() -> None:
    reader = EnvelopeReader(max_bytes=100)
    assert reader.feed(bytes.fromhex("000000")) == []
    with pytest.raises(EnvelopeError, match="message of 101 bytes; the limit is 100"):
        reader.feed(bytes([101]))


def test_a_message_at_the_limit_passes() -> None:
    data = encode_message(Kind.CALL, 1, bytes(91), max_bytes=100)
    assert EnvelopeReader(max_bytes=100).feed(data) == [Message(Kind.CALL, 1, bytes(91))]
    with pytest.raises(EnvelopeError, match="the limit is 100"):
        encode_message(Kind.CALL, 1, bytes(92), max_bytes=100)


@pytest.mark.parametrize(
    ("data_hex", "fault"),
    [("00000008", "message of 8 bytes"), ("00000009" + "0a" + "00" * 8, "unknown message kind 10")],
)
def test_bytes_that_are_no_message_are_refused(data_hex: str, fault: str) -> None:
    with pytest.raises(EnvelopeError, match=fault):
        EnvelopeReader().feed(bytes.fromhex(data_hex))
