"""Owns how a grammar writes the arguments of a call in each kind of syntax. Reads none."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from midstream.routing.watching.coercion import branches_of, expanded, types_of
from midstream.routing.watching.grammar_writer import GrammarWriter, quoted

Schema = Mapping[str, Any]
ArgumentRules = Callable[[GrammarWriter, Schema], str]
"""Writes the expression of a tool's arguments from its parameters. What a schema says is text, whatever it spells."""

MAX_NESTING = 4
"""Arrays in arrays whose items are held to their schema; deeper ones are any literal."""

INTEGER = r"/-?(0|[1-9][0-9]*)/"
NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?/"
_NOTHING = '""'
_PYTHON_STRING = r"""/"([^"\\\x00-\x1f\x7f]|\\["\\nrt])*"/"""


def json_rules(item_separator: str = ", ", key_separator: str = ": ") -> ArgumentRules:
    def write(writer: GrammarWriter, schema: Schema) -> str:
        return writer.json({"type": "object", **schema}, item_separator, key_separator)

    return write


def tagged_rules(before_key: str, after_key: str, after_value: str) -> ArgumentRules:
    """`before_key KEY after_key VALUE after_value` for each argument, declared ones in their order."""

    def write(writer: GrammarWriter, schema: Schema) -> str:
        required = _required(schema)
        members = []
        for key, value in _properties(schema):
            head = f"{writer.literal(before_key)} {quoted(key)} {writer.literal(after_key)}"
            member = f"{head} {_tagged_value(writer, value, after_value)}"
            members.append(f"({member})" if key in required else f"({member})?")
        return " ".join(members)

    return write


def python_rules(writer: GrammarWriter, schema: Schema) -> str:
    """`key=literal, key=literal`."""
    return _listed(writer, schema, ", ", lambda key, value: f"{quoted(key + '=')} {_python(writer, value)}")


def braced_rules(quote: str) -> ArgumentRules:
    """`key:VALUE,key:VALUE`."""

    def write(writer: GrammarWriter, schema: Schema) -> str:
        return _listed(writer, schema, ",", lambda key, value: f"{quoted(key + ':')} {_braced(writer, value, quote)}")

    return write


def _properties(schema: Schema) -> list[tuple[str, Schema]]:
    """The declared arguments, each with the definitions that it may refer to."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    return [
        (key, {**expanded(value, schema), **_definitions(schema)})
        for key, value in properties.items()
        if isinstance(value, dict)
    ]


def _definitions(schema: Schema) -> Schema:
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def _required(schema: Schema) -> list[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _listed(writer: GrammarWriter, schema: Schema, separator: str, member: Callable[[str, Schema], str]) -> str:
    """The arguments in their order, optional ones left out at will, `separator` between those that are there.

    One rule for each argument and each answer to "does another one stand before it?".
    """
    required = _required(schema)
    first, more = _NOTHING, _NOTHING
    for key, value in reversed(_properties(schema)):
        written = member(key, value)
        next_first, next_more = first, more
        first = f"{written} {next_more}"
        more = f"{writer.literal(separator)} {written} {next_more}"
        if key not in required:
            first, more = f"{first} | {next_first}", f"{more} | {next_more}"
        first, more = writer.rule(first), writer.rule(more)
    return first


def _choices(choices: list[str]) -> str:
    return f"({' | '.join(choices)})"


def _enum(value: Schema) -> list[Any] | None:
    if isinstance(value.get("enum"), list) and value["enum"]:
        return list(value["enum"])
    return [value["const"]] if "const" in value else None


def _tagged_value(writer: GrammarWriter, value: Schema, end: str) -> str:
    enum = _enum(value)
    if enum is not None:
        texts = [item if isinstance(item, str) else json.dumps(item) for item in enum]
        return f"{_choices([quoted(text) or _NOTHING for text in texts])} {writer.literal(end)}"
    branches = branches_of(value)
    if branches and "type" not in value:
        return _choices([_tagged_value(writer, {**branch, **_definitions(value)}, end) for branch in branches])
    types = types_of(value)
    if not types or "string" in types:
        return writer.until(end)
    forms = {
        "integer": writer.rule(INTEGER),
        "number": writer.rule(NUMBER),
        "boolean": '("true" | "false")',
        "null": '"null"',
    }
    choices = [forms.get(kind) or writer.json({**value, "type": kind}) for kind in types]
    return f"{_choices(choices)} {writer.literal(end)}"


def _python(writer: GrammarWriter, value: Schema, nesting: int = 0) -> str:
    enum = _enum(value)
    if enum is not None:
        return _choices([quoted(_python_literal(item)) for item in enum])
    branches = branches_of(value)
    if branches and "type" not in value:
        return _choices([_python(writer, branch, nesting) for branch in branches])
    types = types_of(value)
    if not types:
        return _any_python(writer)
    return _choices([_python_of_type(writer, value, kind, nesting) for kind in types])


def _python_of_type(writer: GrammarWriter, value: Schema, kind: str, nesting: int) -> str:
    items, properties = value.get("items"), value.get("properties")
    match kind:
        case "string":
            return writer.rule(_PYTHON_STRING)
        case "integer":
            return writer.rule(INTEGER)
        case "number":
            return writer.rule(NUMBER)
        case "boolean":
            return '("True" | "False")'
        case "null":
            return '"None"'
        case "array" if isinstance(items, dict) and nesting < MAX_NESTING:
            item = _python(writer, items, nesting + 1)
            return f'"[" ({item} (", " {item})*)? "]"'
        case "array":
            any_value = _any_python(writer)
            return f'"[" ({any_value} (", " {any_value})*)? "]"'
        case "object" if isinstance(properties, dict) and nesting < MAX_NESTING:

            def member(key: str, member_value: Schema) -> str:
                return f"{quoted(_python_literal(key) + ': ')} {_python(writer, member_value, nesting + 1)}"

            return f'"{{" {_listed(writer, value, ", ", member)} "}}"'
    _any_python(writer)
    return _python_object(writer)


def _any_python(writer: GrammarWriter) -> str:
    simple = f'{writer.rule(_PYTHON_STRING)} | {writer.rule(NUMBER)} | "True" | "False" | "None"'
    any_list = '"[" (any_python (", " any_python)*)? "]"'
    return writer.rule(f"{simple} | {any_list} | {_python_object(writer)}", name="any_python")


def _python_object(writer: GrammarWriter) -> str:
    string = writer.rule(_PYTHON_STRING)
    pair = f'{string} ": " any_python'
    return f'"{{" ({pair} (", " {pair})*)? "}}"'


def _python_literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _braced(writer: GrammarWriter, value: Schema, quote: str, nesting: int = 0) -> str:
    enum = _enum(value)
    if enum is not None:
        return _choices([_braced_literal(writer, item, quote) for item in enum])
    branches = branches_of(value)
    if branches and "type" not in value:
        return _choices([_braced(writer, branch, quote, nesting) for branch in branches])
    types = types_of(value) or ("string",)
    return _choices([_braced_of_type(writer, value, kind, quote, nesting) for kind in types])


def _braced_of_type(writer: GrammarWriter, value: Schema, kind: str, quote: str, nesting: int) -> str:
    items, properties = value.get("items"), value.get("properties")
    match kind:
        case "integer":
            return writer.rule(INTEGER)
        case "number":
            return writer.rule(NUMBER)
        case "boolean":
            return '("true" | "false")'
        case "null":
            return '"null"'
        case "array" if isinstance(items, dict) and nesting < MAX_NESTING:
            item = _braced(writer, items, quote, nesting + 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        case "object" if isinstance(properties, dict) and nesting < MAX_NESTING:
            members = _listed(
                writer, value, ",", lambda k, v: f"{quoted(k + ':')} {_braced(writer, v, quote, nesting + 1)}"
            )
            return f'"{{" {members} "}}"'
        case "array":
            item = _braced(writer, {"type": "string"}, quote)
            return f'"[" ({item} ("," {item})*)? "]"'
        case "object":
            pair = f'{writer.rule("/[A-Za-z_][A-Za-z0-9_]*/")} ":" {_braced(writer, {"type": "string"}, quote)}'
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
    return f"{writer.literal(quote)} {writer.until(quote)}"


def _braced_literal(writer: GrammarWriter, value: Any, quote: str) -> str:
    if not isinstance(value, str):
        return quoted(json.dumps(value))
    return f"{writer.literal(quote)} {quoted(value)} {writer.literal(quote)}"
