"""Owns the vocabulary of a frame: tags, limits, the values that JSON has no type for. Reads no bytes."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum, IntEnum

from midstream.errors import BtifError

MAX_DEPTH = 64
"""Arrays and objects open at once; the arguments object itself is not one of them."""
MAX_DECIMAL_BYTES = 1024
MAX_FIELDS = 0xFFFF


class Tag(IntEnum):
    ABSENT = 0x00
    STR8 = 0x01
    DATE16 = 0x02
    FALSE = 0x03
    TRUE = 0x04
    INT = 0x05
    F64 = 0x06
    NULL = 0x07
    STR = 0x08
    ENUM = 0x09
    ARRAY = 0x0A
    OBJECT = 0x0B
    DECIMAL = 0x0C


class Absent(Enum):
    """The value of a parameter that was not given."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True)
class EnumIndex:
    """An enum value read without the schema that would give its text."""

    index: int


@dataclass(frozen=True, slots=True)
class DecimalText:
    """A number that neither int nor f64 holds, as its canonical text, which is also valid JSON."""

    text: str

    @property
    def number(self) -> int | Decimal:
        """An int for an integer literal, else a Decimal.

        Raises BtifError where the exponent is beyond what a Decimal can have (18 digits).
        """
        if "e" not in self.text:
            return int(self.text)
        try:
            return Decimal(self.text)
        except InvalidOperation:
            raise BtifError(f"the exponent of {self.text[:40]} is out of range", offset=0) from None


Value = Absent | EnumIndex | DecimalText | None | bool | int | float | str | list["Value"] | dict[str, "Value"]
"""What `decode` gives. A date16 is its ISO text; an enum is its text where the schema is known."""
