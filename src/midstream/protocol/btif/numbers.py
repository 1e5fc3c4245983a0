"""Owns numbers in a frame: varints, and the type of a JSON literal, which stays text until then."""

import math
import re
import struct

from midstream.protocol.btif.values import MAX_DECIMAL_BYTES, Tag

I64_MIN, I64_MAX = -(2**63), 2**63 - 1
MAX_I64_DIGITS = 19

LITERAL = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?")
"""A JSON number: sign, whole part, fraction, exponent's sign, exponent."""
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_SCIENTIFIC = re.compile(r"-?[1-9](?:[0-9]*[1-9])?e(?:0|-?[1-9][0-9]*)")


def varint(value: int) -> bytes:
    """Unsigned LEB128, shortest form; `value` is a u64."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def encode_number(literal: re.Match[str]) -> bytes | None:
    """Tag and value of a `LITERAL` match, or None where its canonical text is over the length limit."""
    sign, whole, fraction, _, exponent = literal.groups()
    if fraction is None and exponent is None:
        return _encode_integer(sign + whole)
    text = _canonical(literal)
    if text is None:
        return None
    if (number := f64_of(text)) is not None:
        return bytes([Tag.F64]) + struct.pack(">d", number)
    return _encode_decimal(text)


def _encode_integer(text: str) -> bytes | None:
    if (number := i64_of(text)) is not None:
        return bytes([Tag.INT]) + varint(zigzag(number))
    return _encode_decimal(text)


def _encode_decimal(text: str) -> bytes | None:
    if len(text) > MAX_DECIMAL_BYTES:
        return None
    return bytes([Tag.DECIMAL]) + varint(len(text)) + text.encode("ascii")


def _canonical(literal: re.Match[str]) -> str | None:
    """The value as `-?coefficient e exponent` (`-?0.0` for zero); None where that is too long."""
    sign, whole, fraction, exponent_sign, exponent_digits = literal.groups(default="")
    digits = (whole + fraction).lstrip("0")
    coefficient = digits.rstrip("0")
    if not coefficient:
        return sign + "0.0"
    exponent_text = exponent_digits.lstrip("0") or "0"
    if len(coefficient) > MAX_DECIMAL_BYTES or len(exponent_text) > MAX_DECIMAL_BYTES:
        return None
    exponent = -int(exponent_text) if exponent_sign == "-" else int(exponent_text)
    text = f"{sign}{coefficient}e{exponent - len(fraction) + len(digits) - len(coefficient)}"
    return text if len(text) <= MAX_DECIMAL_BYTES else None


def i64_of(text: str) -> int | None:
    """The value of an integer literal, or None where an i64 does not hold it."""
    if len(text) > MAX_I64_DIGITS + 1:
        return None
    number = int(text)
    return number if I64_MIN <= number <= I64_MAX else None


def f64_of(canonical_text: str) -> float | None:
    """The f64 whose shortest decimal text has exactly this value, or None."""
    number = float(canonical_text)
    if math.isinf(number):
        return None
    shortest = LITERAL.fullmatch(repr(number))
    assert shortest is not None
    return number if _canonical(shortest) == canonical_text else None


def decimal_fault(text: str) -> str | None:
    """Why `text` is no decimal of a canonical frame, or None where it is one."""
    if _INTEGER.fullmatch(text):
        if text == "-0" or i64_of(text) is not None:
            return "decimal that int holds"
        return None
    if not _SCIENTIFIC.fullmatch(text):
        return "decimal that is not canonical"
    return "decimal that f64 holds" if f64_of(text) is not None else None
