"""Owns `calculate`: arithmetic by its own parser, in milliseconds at most. Never calls eval."""

import math
import operator
import re
from collections.abc import Callable
from typing import Any

from midstream.tools.registry import tool

Number = int | float

_MAX_CHARS = 200
_MAX_DEPTH = 32
_MAX_BITS = 1023
"""Of an exact integer: 308 digits, so that every one of them has a float."""
_MAX_ROUNDING_DIGITS = 308
_SIGNIFICANT_DIGITS = 15
_MAX_WHOLE = 2**53
_POWER_BINDS = 4

_TOKEN = re.compile(
    r"(?P<number>(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|//|\S)", re.ASCII
)
_HINTS = {"^": "; write powers with **", ",": "; write 1234.5, not 1,234.5"}
_TYPESET = str.maketrans("×÷−", "*/-")
_CONSTANTS = {"pi": math.pi, "e": math.e}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": _POWER_BINDS}
_UNARY_BINDS = 3
"""-2**2 is -(2**2), and -2*3 is (-2)*3."""


@tool(read_only=True, idempotent=True)
def calculate(expression: str) -> dict[str, Any]:
    """Calculate the value of an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, pi, e, sqrt, sin, cos, tan, log, log10, exp,
            abs, round, min, max, floor, ceil. Angles are in radians. Example: (3 + 4) * 2
    """
    return {"expression": expression, "value": _tidy(evaluate(expression))}


def evaluate(expression: str) -> Number:
    """Value of `expression`; integers stay exact. Raises ValueError with what is wrong, and nothing else."""
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"the expression is {len(expression)} characters long; the limit is {_MAX_CHARS}")
    parser = _Parser(expression)
    value = parser.expression(0)
    parser.expect_end()
    return value


class _Parser:
    """Precedence climbing that computes as it reads. `depth` counts the calls that are open."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_TOKEN.finditer(text.translate(_TYPESET)))
        self._next = 0
        self._depth = 0

    def expression(self, binds_over: int) -> Number:
        """Read operators that bind tighter than `binds_over`."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"the expression is nested more than {_MAX_DEPTH} deep")
        left = self._operand()
        while _BINDS.get(self._peek(), 0) > binds_over:
            sign = self._take()
            binds = _BINDS[sign]
            # Powers associate to the right: 2**3**2 is 2**(3**2).
            right = self.expression(binds - 1 if binds == _POWER_BINDS else binds)
            left = _apply(sign, _OPERATORS[sign], left, right)
        self._depth -= 1
        return left

    def expect_end(self) -> None:
        left_over = self._peek()
        if left_over:
            hint = _HINTS.get(left_over, "")
            raise ValueError(f"{left_over!r} is not expected after a complete expression{hint}")

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        text = self._peek()
        self._next += 1
        return text

    def _operand(self) -> Number:
        kind = self._tokens[self._next].lastgroup if self._peek() else None
        text = self._take()
        if kind == "number":
            return _number(text)
        if kind == "name":
            return self._call(text) if self._peek() == "(" else _constant(text)
        if text in ("-", "+"):
            value = self.expression(_UNARY_BINDS)
            return -value if text == "-" else value
        if text == "(":
            value = self.expression(0)
            self._close()
            return value
        raise ValueError(f"a number is expected, not {text!r}" if text else "the expression is not complete")

    def _call(self, name: str) -> Number:
        if name not in _FUNCTIONS:
            raise ValueError(f"there is no function {name!r}; there are: {', '.join(_FUNCTIONS)}")
        self._take()
        arguments = [self.expression(0)]
        while self._peek() == ",":
            self._take()
            arguments.append(self.expression(0))
        self._close()
        return _apply(name, _FUNCTIONS[name], *arguments)

    def _close(self) -> None:
        if self._take() != ")":
            raise ValueError("a closing parenthesis is missing")


def _number(text: str) -> Number:
    try:
        return _checked(int(text) if text.isdigit() else float(text))
    except OverflowError:
        raise ValueError(f"{text} is too large") from None


def _constant(name: str) -> Number:
    if name not in _CONSTANTS:
        raise ValueError(f"there is no constant {name!r}; there are: {', '.join(_CONSTANTS)}")
    return _CONSTANTS[name]


def _apply(name: str, operation: Callable[..., Number], *values: Number) -> Number:
    try:
        return _checked(operation(*values))
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None
    except TypeError:
        raise ValueError(f"{name} cannot be applied to {_shown(values)}") from None
    except ValueError:
        raise ValueError(f"{name} has no real value for {_shown(values)}") from None


def _checked(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise OverflowError
    elif not math.isfinite(value):
        raise OverflowError
    return value


def _shown(values: tuple[Number, ...]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _tidy(value: Number) -> Number:
    """Without the noise of binary fractions: 0.1 + 0.2 is 0.3, and 6 / 4 * 2 is 3."""
    if isinstance(value, int):
        return value
    rounded = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < _MAX_WHOLE else rounded


def _divide(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int) and a % b == 0:
        return a // b
    return a / b


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        # Checked before, not after: computing it would be what takes long.
        if abs(base) > 1 and (base.bit_length() - 1) * exponent > _MAX_BITS:
            raise OverflowError
        return int(base**exponent)
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError
    return _checked(value)


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int):
        raise TypeError
    if abs(digits) > _MAX_ROUNDING_DIGITS:
        raise OverflowError
    return round(value, digits) if digits else round(value)


_OPERATORS: dict[str, Callable[..., Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "log": math.log,
    "log10": math.log10,
    "exp": math.exp,
    "abs": abs,
    "round": _round,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "floor": math.floor,
    "ceil": math.ceil,
}
