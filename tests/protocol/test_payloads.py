import pytest

from midstream.errors import EnvelopeError
from midstream.protocol.payloads import Error, ErrorCode, Hello, Open, Partial, Progress, Result

Payload = type[Hello] | type[Open] | type[Partial] | type[Progress] | type[Result] | type[Error]


@pytest.mark.parametrize(
    ("payload", "packed"),
    [
        (Hello({"name": "天"}), b'\x01{"name":"\xe5\xa4\xa9"}'),
        (Open(3, 5000), bytes.fromhex("0000000300001388")),
        (Partial(1, "SELECT"), b"\x00\x01SELECT"),
        (Progress(40, "é"), b"\x28\xc3\xa9"),
        (Progress(None, ""), b"\xff"),
        (Result("text/plain", b"\x00\xff"), b"\x0atext/plain\x00\xff"),
        (Error(ErrorCode.TIMED_OUT, "after 5 s"), b"\x00\x05after 5 s"),
    ],
)
def test_a_payload_packs_and_unpacks(
    payload: Hello | Open | Partial | Progress | Result | Error, packed: bytes
) -> None:
    assert payload.pack() == packed
    assert type(payload).unpack(packed) == payload


@pytest.mark.parametrize(
    ("kind", "packed", "fault"),
    [
        (Hello, b"", "at least 1"),
        (Hello, b"\x02{}", "version 2; this side speaks 1"),
        (Hello, b"\x01[", "not JSON"),
        (Hello, b"\x01" + b"[" * 100_000, "not JSON"),
        (Hello, b"\x01[]", "not a JSON object"),
        (Open, bytes(7), "7 bytes instead of 8"),
        (Partial, b"\x00", "at least 2"),
        (Partial, b"\x00\x00\xff", "not UTF-8"),
        (Progress, b"\x65", "progress of 101 percent"),
        (Result, b"\x0atext", "at least 11"),
        (Result, b"\x01\xff", "not ASCII"),
        (Error, b"\x00\x09", "unknown error code 9"),
    ],
)
def test_a_payload_that_breaks_the_format_is_refused(kind: Payload, packed: bytes, fault: str) -> None:
    with pytest.raises(EnvelopeError, match=fault):
        kind.unpack(packed)
