"""Owns the writing of llguidance's Lark: literals, lazy texts and JSON as expressions. Knows no dialect."""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any


class GrammarTooLong(Exception):
    """A grammar has more characters than it may have."""


class GrammarWriter:
    """Collects the rules that its expressions refer to. A special token in a text is written as that token."""

    def __init__(self, special_ids: Mapping[str, int], max_characters: int = sys.maxsize) -> None:
        """`special_ids`: the special tokens by text; their bytes are no text to llguidance."""
        self.rules: list[str] = []
        self._special_ids = special_ids
        self._split = re.compile("|".join(map(re.escape, sorted(special_ids, key=len, reverse=True))) or r"(?!)")
        self._named: dict[str, str] = {}
        self._num_names = 0
        self._num_left = max_characters

    def literal(self, text: str) -> str:
        """An expression for exactly `text`; "" for no text."""
        parts: list[str] = []
        end = 0
        for found in self._split.finditer(text):
            parts += [quoted(text[end : found.start()]), f"<[{self._special_ids[found[0]]}]>"]
            end = found.end()
        parts.append(quoted(text[end:]))
        return " ".join(part for part in parts if part)

    def after_specials(self, text: str) -> str:
        """The end of `text` that holds no special token."""
        return text[max((found.end() for found in self._split.finditer(text)), default=0) :]

    def until(self, *ends: str) -> str:
        """Any text up to the first of `ends`, which is part of it."""
        plain = [end for end in ends if end and self.after_specials(end) == end]
        if not plain:
            return f"{self.rule(ANY_TEXT)} {self.literal(ends[0])}".strip()
        marker = "|".join(escaped(end) for end in plain)
        return self.rule(rf"/(.|\n)*({marker})/", is_lazy=True)

    def json(self, schema: Mapping[str, Any], item_separator: str = ", ", key_separator: str = ": ") -> str:
        options = {
            "whitespace_flexible": False,
            "item_separator": item_separator,
            "key_separator": key_separator,
            "lenient": True,
        }
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def rule(self, body: str, *, is_lazy: bool = False, name: str | None = None) -> str:
        """The name of a rule with this body; the same body is written once. Raises GrammarTooLong."""
        self._num_left -= len(body)
        if self._num_left < 0:
            raise GrammarTooLong
        found = self._named.get(body)
        if found is None:
            found = self._named[body] = name or self.declare()
            self.define(f"{found}{'[lazy]' if is_lazy else ''}", body)
        return found

    def declare(self) -> str:
        """The name of a rule whose body is still to be defined: it may refer to itself."""
        self._num_names += 1
        return f"r{self._num_names - 1}"

    def define(self, name: str, body: str) -> None:
        self.rules.append(f"{name}: {body}")

    def text(self, start: str) -> str:
        return "%llguidance {}\n" + "\n".join([f"start: {start}", *self.rules]) + "\n"


ANY_TEXT = r"/(.|\n)*/"


def escaped(text: str) -> str:
    """A regular expression for exactly `text`, as Lark writes one between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
