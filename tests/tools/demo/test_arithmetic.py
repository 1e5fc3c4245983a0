"""Owns the tests of `calculate`: values, limits, and that no text breaks or delays it."""

import contextlib
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.tools.demo import calculate
from midstream.tools.demo.arithmetic import evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 2 - 3", 5),
        ("2**3**2", 512),
        ("-2**2", -4),
        ("2**-1", 0.5),
        ("2**-1*4", 2),
        ("-3 * -(2)", 6),
        ("--+-5", -5),
        ("7 // 2", 3),
        ("-7 // 2", -4),
        ("17 % 5 * 2", 4),
        ("7 / 2", 3.5),
        ("6 / 4 * 2", 3),
        ("2**100", 2**100),
        ("2**100 / 2", 2**99),
        ("0.1 + 0.2", 0.3),
        ("1.5e3 + .5", 1500.5),
        ("1 / 3", 0.333333333333333),
        ("pi", 3.14159265358979),
        ("sqrt(16)", 4),
        ("log(e)", 1),
        ("log(8, 2)", 3),
        ("log10(1000)", 3),
        ("exp(0) + cos(0) + sin(0) + tan(0)", 2),
        ("abs(-3) + max(1, 7, 2) - min(4, 2)", 8),
        ("round(2.567, 2)", 2.57),
        ("round(2.4)", 2),
        ("floor(-1.5) + ceil(1.2)", 0),
        ("12 × 3 ÷ 4 − 1", 8),
        ("\t 1\n+ 1 ", 2),
    ],
)
def test_values(expression: str, value: float) -> None:
    assert calculate(expression) == {"expression": expression, "value": value}
    assert type(calculate(expression)["value"]) is type(value)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 / 0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("sqrt(-1)", "sqrt has no real value for -1"),
        ("log(0)", "log has no real value for 0"),
        ("(-8) ** 0.5", "no real value for -8, 0.5"),
        ("exp(1000)", "too large"),
        ("1e308 * 10", "too large"),
        ("1e999", "1e999 is too large"),
        ("sqrt(1, 2)", "sqrt cannot be applied to 1, 2"),
        ("round(1, 0.5)", "round cannot be applied"),
        ("", "not complete"),
        ("1 +", "not complete"),
        ("(1", "closing parenthesis"),
        ("1)", "'\\)' is not expected"),
        ("min()", "a number is expected"),
        ("2 ^ 3", r"write powers with \*\*"),
        ("1,234", "write 1234.5"),
        ("1 2", "'2' is not expected"),
        ("tau", "no constant 'tau'; there are: pi, e"),
        ("factorial(5)", "no function 'factorial'; there are: sqrt"),
        ("__import__('os')", "no function '__import__'"),
        ("'a' * 3", "number is expected"),
        ("x.real", "no constant 'x'"),
    ],
)
def test_errors_say_what_is_wrong(expression: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        calculate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "9**9**9**9**9",
        "2**1024",
        "(2**1000)**(2**1000)",
        "(-9)**99999999",
        "2**-99999999999",
        "'a'*10**9",
        "(" * 10_000 + ")" * 10_000,
        "(" * 90 + "1" + ")" * 90,
        "-" * 199 + "1",
        "abs(" * 49,
        "9" * 100_000,
        "9" * 200 + "**9",
        "round(5, -10**9)",
        "round(0.5, 10**300)",
        "2**1023 * 2",
    ],
)
def test_nothing_takes_longer_than_milliseconds(expression: str) -> None:
    before = time.process_time()
    with contextlib.suppress(ValueError):
        evaluate(expression)
    assert time.process_time() - before < 0.05


def test_a_float_power_that_vanishes_is_zero() -> None:
    assert evaluate("2**-9999") == 0


def test_limits_are_named() -> None:
    with pytest.raises(ValueError, match="201 characters long; the limit is 200"):
        evaluate("1" * 201)
    with pytest.raises(ValueError, match="more than 32 deep"):
        evaluate("(" * 32 + "1" + ")" * 32)
    assert evaluate("(" * 31 + "1" + ")" * 31) == 1


NUMBERS_AND_SIGNS = [
    "1",
    "2.5",
    "9",
    "99999999",
    "1e308",
    ".5",
    "e",
    "pi",
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "(",
    ")",
    ",",
]
CALLS = ["sqrt(", "log(", "round(", "max(", "exp(", "floor(", "tan("]
PIECES = st.sampled_from([*NUMBERS_AND_SIGNS, *CALLS])


@settings(deadline=1000)
@given(st.one_of(st.text(max_size=250), st.lists(PIECES, max_size=40).map("".join)))
def test_any_text_gives_a_finite_number_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        value = calculate(text)["value"]
        assert isinstance(value, int) or math.isfinite(value)


@given(st.integers(-(10**40), 10**40), st.integers(-(10**40), 10**40), st.sampled_from(["+", "-", "*"]))
def test_integers_stay_exact(a: int, b: int, sign: str) -> None:
    assert calculate(f"({a}) {sign} ({b})")["value"] == {"+": a + b, "-": a - b, "*": a * b}[sign]
