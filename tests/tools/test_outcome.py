from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from midstream.protocol.payloads import Error, ErrorCode, Result
from midstream.tools.limits import HostLimits
from midstream.tools.outcome import outcome_of_exception, outcome_of_value

LIMITS = HostLimits(max_result_bytes=50, max_error_chars=20)


class Point(BaseModel):
    x: float


@dataclass
class Leg:
    start: Point


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, b"null"),
        ({"a": [None, (1.5, True)]}, b'{"a":[null,[1.5,true]]}'),
        (Decimal("1e-7"), b"1E-7"),
        (10**40, b"1" + b"0" * 40),
        (datetime(2024, 6, 20, tzinfo=UTC), b'"2024-06-20T00:00:00Z"'),
        ({1: "é"}, '{"1":"é"}'.encode()),
        (Leg(Point(x=2)), b'{"start":{"x":2.0}}'),
    ],
)
def test_a_value_becomes_compact_json(value: Any, content: bytes) -> None:
    assert outcome_of_value(value, LIMITS) == Result("application/json", content)


def test_a_text_stays_text_even_with_a_lone_surrogate() -> None:
    assert outcome_of_value("é\ud800", LIMITS) == Result("text/plain", "é?".encode())


@pytest.mark.parametrize("value", [float("inf"), {"a": [None, float("nan")]}, Leg(Point(x=float("nan")))])
def test_a_number_that_is_none_is_an_error_wherever_it_hides(value: Any) -> None:
    outcome = outcome_of_value(value, HostLimits())
    assert isinstance(outcome, Error)
    assert outcome.text.endswith("is no JSON number")


def test_a_value_that_contains_itself_is_an_error() -> None:
    value: list[Any] = []
    value.append(value)
    assert isinstance(outcome_of_value(value, LIMITS), Error)


def test_a_result_at_the_limit_passes_and_one_over_it_does_not() -> None:
    assert isinstance(outcome_of_value("x" * 50, LIMITS), Result)
    message = "the result is 51 bytes; the limit is 50"
    assert outcome_of_value("x" * 51, LIMITS) == Error(ErrorCode.OVER_LIMIT, message)


def test_an_exception_is_its_name_and_message_cut_to_length() -> None:
    assert outcome_of_exception(KeyError("a"), LIMITS).text == "KeyError: 'a'"
    assert outcome_of_exception(ValueError(), LIMITS).text == "ValueError"
    assert outcome_of_exception(ValueError("x" * 50), LIMITS).text == "ValueError: xxxxxxx…"


def test_an_exception_that_has_no_text_does_no_harm() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert outcome_of_exception(MuteError(), LIMITS).text == "MuteError"
