"""Tokens to text: characters come whole, and what never becomes one is said once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.engine.detokenizer import Detokenizer

TEXT = "aé€😀日本\u200d🏳️‍🌈z"


def decode(pieces: list[bytes]) -> list[str]:
    """What each piece gives, and the end."""
    detokenizer = Detokenizer(pieces)
    return [*(detokenizer.feed(token_id) for token_id in range(len(pieces))), detokenizer.finish()]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_characters_cut_anywhere_come_out_whole(size: int) -> None:
    data = TEXT.encode()
    texts = decode([data[start : start + size] for start in range(0, len(data), size)])
    assert "".join(texts) == TEXT
    assert not any("\ufffd" in text for text in texts)


def test_a_character_comes_with_its_last_byte_and_not_before() -> None:
    assert decode([b"\xf0", b"\x9f\x98", b"\x80!", b"a"]) == ["", "", "😀!", "a", ""]


@pytest.mark.parametrize("tail", [b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98"])
def test_a_broken_tail_is_one_replacement_character(tail: bytes) -> None:
    assert decode([b"ok", tail]) == ["ok", "", "\ufffd"]
    assert decode([b"ok", *(bytes([byte]) for byte in tail)])[-1] == "\ufffd"


def test_a_character_that_breaks_off_before_another_is_replaced_where_it_stood() -> None:
    assert decode([b"\xe2\x82", b"a\xff", b"b"]) == ["", "\ufffda\ufffd", "b", ""]


def test_the_end_is_told_once() -> None:
    detokenizer = Detokenizer([b"\xc3", b"\xa9"])
    detokenizer.feed(0)
    assert [detokenizer.finish(), detokenizer.finish()] == ["\ufffd", ""]
    assert detokenizer.feed(0) + detokenizer.feed(1) == "é"


@given(st.lists(st.binary(max_size=4), max_size=12))
def test_any_bytes_give_what_they_give_at_once(pieces: list[bytes]) -> None:
    assert "".join(decode(pieces)) == b"".join(pieces).decode("utf-8", "replace")
