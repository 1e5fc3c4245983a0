"""Owns the local `$ref`s of a JSON Schema. What leads nowhere is nothing, no failure: schemas come from strangers."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from midstream.protocol.levels import levels_of

MAX_HOPS = 64
"""`$ref`s that are followed for one value."""

_NO_SCHEMA: dict[str, Any] = {}


def target_of(reference: object, root: object) -> object:
    """What the JSON pointer `#/…` means in `root`; None where it means nothing. Source: RFC 6901."""
    if reference == "#":
        return root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    node = root
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isascii() and key.isdigit() and len(key) < 9:
            node = node[int(key)] if int(key) < len(node) else None
        else:
            return None
    return node


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema`, or the part of `root` that it refers to; empty where that is no schema."""
    for _ in range(MAX_HOPS):
        if "$ref" not in schema:
            return schema
        target = target_of(schema["$ref"], root)
        schema = target if isinstance(target, dict) else _NO_SCHEMA
    return _NO_SCHEMA


def self_contained(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` as a document of its own: what it refers to in `root` stands in its `$defs`, once each."""
    names: dict[str, str] = {}
    found: list[object] = []

    def moved(node: Any) -> Any:
        if isinstance(node, list):
            return [moved(item) for item in node]
        if not isinstance(node, dict):
            return node
        copy = {key: moved(value) for key, value in node.items()}
        target = target_of(node.get("$ref"), root)
        if isinstance(target, dict):
            reference = node["$ref"]
            if reference not in names:
                names[reference] = f"d{len(names)}"
                found.append(target)
            copy["$ref"] = f"#/$defs/{names[reference]}"
        return copy

    document: dict[str, Any] = moved(schema)
    definitions: dict[str, Any] = {}
    for target in found:  # it grows while it is read
        definitions[f"d{len(definitions)}"] = moved(target)
    return {**document, "$defs": definitions} if definitions else document


def num_levels(schema: Mapping[str, Any]) -> int:
    """How deep the JSON of `schema` is nested, and that of each part of it that it refers to, all together.

    No chain of references is nested deeper than that, whatever the order in which they are followed.
    """
    num, seen = 0, set[str]()
    parts: list[object] = [schema]
    for part in parts:  # it grows while it is read
        for level in levels_of(part):
            num += 1
            references = [node.get("$ref") for node in level if isinstance(node, dict)]
            new = {reference for reference in references if isinstance(reference, str)} - seen
            seen |= new
            parts += [target_of(reference, schema) for reference in new]
    return num
