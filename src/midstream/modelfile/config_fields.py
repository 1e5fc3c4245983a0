"""Owns typed, bounded look-ups in a model's metadata. Knows no key by name."""

import math
from collections.abc import Mapping
from typing import Any

from midstream.errors import ModelFileError


class ConfigFields:
    """The keys of `values` below `prefix`. A look-up raises ModelFileError with the value and its limits."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self._values = values
        self._source = source
        self._prefix = prefix

    def under(self, prefix: str) -> "ConfigFields":
        return ConfigFields(self._values, self._source, self._prefix + prefix)

    def child(self, key: str) -> "ConfigFields | None":
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"has {self._prefix}{key} {value!r}; an object is needed")
        return ConfigFields(value, f"{self._source}: {key}")

    def error(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self._source} {message}")

    def get(self, key: str) -> Any:
        return self._values.get(self._prefix + key)

    def has(self, key: str) -> bool:
        return self._prefix + key in self._values

    def integer(self, key: str, low: int, high: int, *, default: int | None = None) -> int:
        value = self._value(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self._bad(key, value, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, *, default: float | None = None) -> float:
        value = self._value(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not low <= value <= high:
            raise self._bad(key, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._bad(key, value, "a text")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def token_id(self, key: str, vocab_size: int) -> int | None:
        return None if self.get(key) is None else self.integer(key, 0, vocab_size - 1)

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One id or a list of them; none when the key is missing."""
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in ids:
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                raise self._bad(key, token_id, f"an id from 0 to {vocab_size - 1}")
        return tuple(dict.fromkeys(ids))

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"lacks {self._prefix}{key}; the file is incomplete: fetch it again")
        return value

    def _bad(self, key: str, value: Any, wanted: str) -> ModelFileError:
        return self.error(f"has {self._prefix}{key} {value!r}; {wanted} is needed")
