"""Owns how a grammar writes the arguments of a call, as JSON and between tags. Reads none."""

import json
from collections.abc import Callable

from midstream.protocol.references import resolved, self_contained
from midstream.routing.watching.grammar_writer import GrammarWriter, quoted
from midstream.routing.watching.schema import (
    Schema,
    alternatives_of,
    properties_of,
    required_of,
    types_of,
    values_of,
)

ArgumentRules = Callable[[GrammarWriter, Schema], str]
"""Writes the expression of a tool's arguments from its parameters. What a schema says is text, whatever it spells."""

INTEGER = r"/-?(0|[1-9][0-9]*)/"
NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?/"
NOTHING = '""'


def json_rules(item_separator: str = ", ", key_separator: str = ": ") -> ArgumentRules:
    def write(writer: GrammarWriter, schema: Schema) -> str:
        return writer.json({"type": "object", **schema}, item_separator, key_separator)

    return write


def tagged_rules(before_key: str, after_key: str, after_value: str) -> ArgumentRules:
    """`before_key KEY after_key VALUE after_value` for each argument, declared ones in their order."""

    def write(writer: GrammarWriter, schema: Schema) -> str:
        required = required_of(resolved(schema, schema))
        members = []
        for key, value in properties_of(resolved(schema, schema)):
            head = f"{writer.literal(before_key)} {quoted(key)} {writer.literal(after_key)}"
            member = f"{head} {_tagged_value(writer, value, schema, after_value)}"
            members.append(f"({member})" if key in required else f"({member})?")
        return " ".join(members)

    return write


def one_of(choices: list[str]) -> str:
    return f"({' | '.join(choices)})"


def _tagged_value(writer: GrammarWriter, schema: Schema, root: Schema, end: str) -> str:
    """Any text where a string may stand: between tags nothing tells it from another type."""
    forms: list[str] = []
    for alternative in alternatives_of(schema, root):
        values = values_of(alternative)
        if values is not None:
            texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
            forms += [quoted(text) or NOTHING for text in texts]
            continue
        types = types_of(alternative, root)
        if not types or "string" in types:
            return writer.until(end)
        forms += [_untagged(writer, alternative, root, kind) for kind in types]
    return f"{one_of(list(dict.fromkeys(forms)))} {writer.literal(end)}" if forms else writer.until(end)


def _untagged(writer: GrammarWriter, schema: Schema, root: Schema, kind: str) -> str:
    match kind:
        case "integer":
            return writer.rule(INTEGER)
        case "number":
            return writer.rule(NUMBER)
        case "boolean":
            return '("true" | "false")'
        case "null":
            return '"null"'
    return writer.json(self_contained({**schema, "type": kind}, root))
