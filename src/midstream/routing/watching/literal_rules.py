"""Owns how a grammar writes arguments as literals that are not JSON's, one syntax for each `Spelling`. Reads none.

Whatever has parts is a rule of its own, so that a grammar is as long as its schema; what a schema refers to is one
rule, wherever and however often it is referred to, by itself too.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from midstream.protocol.references import resolved
from midstream.routing.watching.argument_rules import INTEGER, NOTHING, NUMBER, ArgumentRules, one_of
from midstream.routing.watching.grammar_writer import GrammarWriter, quoted
from midstream.routing.watching.schema import Schema, branches_of, properties_of, required_of, types_of, values_of

MAX_NESTING = 16
"""Containers in containers that are held to their schema; deeper ones hold any value."""

_PYTHON_STRING = r"""/"([^"\\\x00-\x1f\x7f]|\\["\\nrt])*"/"""
_BARE_KEY = "/[A-Za-z_][A-Za-z0-9_]*/"


@dataclass(frozen=True)
class Spelling:
    """What one syntax of literals looks like; each function gives an expression."""

    separator: str
    argument_key: Callable[[str], str]
    member_key: Callable[[str], str]
    """The key of a member of an object, up to its value."""
    words: dict[str, str]
    """The forms of `boolean` and `null`."""
    string: Callable[[GrammarWriter], str]
    constant: Callable[[GrammarWriter, Any], str]
    anything: Callable[[GrammarWriter], str]
    any_key: Callable[[GrammarWriter], str]
    """As `member_key`, of an object whose members are not declared."""


def literal_rules(spelling: Spelling) -> ArgumentRules:
    def write(writer: GrammarWriter, schema: Schema) -> str:
        return _Literals(writer, schema, spelling).arguments()

    return write


class _Literals:
    """Writes the literals of one tool's schema."""

    def __init__(self, writer: GrammarWriter, root: Schema, spelling: Spelling) -> None:
        self._writer = writer
        self._root = root
        self._spelling = spelling
        self._rules: dict[int, str] = {}
        """The rule of each part of the schema that is referred to, by its id()."""
        self._pending: list[tuple[str, Schema]] = []

    def arguments(self) -> str:
        written = self._members(resolved(self._root, self._root), self._spelling.argument_key, 0)
        while self._pending:
            name, schema = self._pending.pop()
            self._writer.define(name, self._plain(schema, 0))
        return written

    def _value(self, schema: Schema, nesting: int) -> str:
        if "$ref" not in schema:
            return self._plain(schema, nesting)
        target = resolved(schema, self._root)
        name = self._rules.get(id(target))
        if name is None:
            name = self._writer.declare()
            self._rules[id(target)] = name
            self._pending.append((name, target))
        return name

    def _plain(self, schema: Schema, nesting: int) -> str:
        values = values_of(schema)
        if values is not None:
            return one_of([self._spelling.constant(self._writer, value) for value in values])
        types, branches = types_of(schema, self._root), branches_of(schema)
        if not types:
            return self._spelling.anything(self._writer)
        if branches and "type" not in schema:
            return one_of([self._value(branch, nesting) for branch in branches])
        return one_of([self._of_type(schema, kind, nesting) for kind in types])

    def _of_type(self, schema: Schema, kind: str, nesting: int) -> str:
        match kind:
            case "integer":
                return self._writer.rule(INTEGER)
            case "number":
                return self._writer.rule(NUMBER)
            case "array":
                return self._array(schema.get("items"), nesting)
            case "object":
                return self._object(schema, nesting)
        return self._spelling.words.get(kind) or self._spelling.string(self._writer)

    def _array(self, items: Any, nesting: int) -> str:
        is_held = isinstance(items, dict) and nesting < MAX_NESTING
        item = self._value(items, nesting + 1) if is_held else self._spelling.anything(self._writer)
        return self._repeated("[", item, "]")

    def _object(self, schema: Schema, nesting: int) -> str:
        if isinstance(schema.get("properties"), dict) and nesting < MAX_NESTING:
            return f'"{{" {self._members(schema, self._spelling.member_key, nesting + 1)} "}}"'
        pair = f"{self._spelling.any_key(self._writer)} {self._spelling.anything(self._writer)}"
        return self._repeated("{", pair, "}")

    def _repeated(self, opening: str, item: str, closing: str) -> str:
        item = self._writer.rule(item)
        separator = self._writer.literal(self._spelling.separator)
        return f"{quoted(opening)} ({item} ({separator} {item})*)? {quoted(closing)}"

    def _members(self, schema: Schema, key_of: Callable[[str], str], nesting: int) -> str:
        """The members in their order, optional ones left out at will, the separator between those that are there."""
        required = required_of(schema)
        members = [
            self._member(f"{key_of(key)} {self._value(value, nesting)}", is_optional=key not in required)
            for key, value in properties_of(schema)
        ]
        if not members:
            return NOTHING
        written = self._joined(members)
        return f"({written.first} | {NOTHING})" if written.is_optional else written.first

    def _member(self, written: str, *, is_optional: bool) -> "_Run":
        first = self._writer.rule(written)
        more = f"{self._writer.literal(self._spelling.separator)} {first}"
        return _Run(first, self._writer.rule(f"{more} | {NOTHING}" if is_optional else more), is_optional)

    def _joined(self, runs: list["_Run"]) -> "_Run":
        """Half by half: rules that follow each other in a chain are nested as deep as there are members."""
        if len(runs) == 1:
            return runs[0]
        left, right = self._joined(runs[: len(runs) // 2]), self._joined(runs[len(runs) // 2 :])
        first = f"{left.first} {right.more}"
        return _Run(
            self._writer.rule(f"{first} | {right.first}" if left.is_optional else first),
            self._writer.rule(f"{left.more} {right.more}"),
            left.is_optional and right.is_optional,
        )


@dataclass(frozen=True)
class _Run:
    """Members that follow each other in an object."""

    first: str
    """The rule of at least one of them, where none stands before them."""
    more: str
    """The rule of those that are there, each behind a separator."""
    is_optional: bool


def _python_literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _any_python(writer: GrammarWriter) -> str:
    string = writer.rule(_PYTHON_STRING)
    simple = f'{string} | {writer.rule(NUMBER)} | "True" | "False" | "None"'
    any_list = '"[" (any_python (", " any_python)*)? "]"'
    any_dict = f'"{{" ({string} ": " any_python (", " {string} ": " any_python)*)? "}}"'
    return writer.rule(f"{simple} | {any_list} | {any_dict}", name="any_python")


PYTHON = Spelling(
    separator=", ",
    argument_key=lambda key: quoted(f"{key}="),
    member_key=lambda key: quoted(f"{_python_literal(key)}: "),
    words={"boolean": '("True" | "False")', "null": '"None"'},
    string=lambda writer: writer.rule(_PYTHON_STRING),
    constant=lambda writer, value: quoted(_python_literal(value)),
    anything=_any_python,
    any_key=lambda writer: f'{writer.rule(_PYTHON_STRING)} ": "',
)
"""`key=literal, key=literal`."""


def braced(quote: str) -> Spelling:
    """`key:VALUE,key:VALUE`, strings between two `quote`. What has no type is a string."""

    def string(writer: GrammarWriter) -> str:
        return f"{writer.literal(quote)} {writer.until(quote)}"

    def constant(writer: GrammarWriter, value: Any) -> str:
        if not isinstance(value, str):
            return quoted(json.dumps(value))
        return f"{writer.literal(quote)} {quoted(value)} {writer.literal(quote)}"

    return Spelling(
        separator=",",
        argument_key=lambda key: quoted(f"{key}:"),
        member_key=lambda key: quoted(f"{key}:"),
        words={"boolean": '("true" | "false")', "null": '"null"'},
        string=string,
        constant=constant,
        anything=string,
        any_key=lambda writer: f'{writer.rule(_BARE_KEY)} ":"',
    )
