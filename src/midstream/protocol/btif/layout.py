"""Owns what a tool's JSON Schema says about its frames. Never validates a value.

A schema comes from a stranger: whatever is not understood (a dangling or cyclic `$ref`, a boolean schema, a
number where a list belongs) means "no schema here", never a failure.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from midstream.errors import BtifError
from midstream.protocol.btif.values import MAX_FIELDS
from midstream.protocol.references import MAX_HOPS, target_of


class Shape:
    """What of the schema of one value its encoding depends on. Children are found on demand."""

    def __init__(self, schema: dict[str, Any], document: "_Document") -> None:
        self.schema = schema
        self._document = document
        self.is_date = schema.get("format") == "date"

    @cached_property
    def enum(self) -> list[Any]:
        return _list(self.schema.get("enum"))

    @cached_property
    def enum_index(self) -> dict[str, int]:
        index: dict[str, int] = {}
        for i, value in enumerate(self.enum):
            if isinstance(value, str):
                index.setdefault(value, i)
        return index

    def item(self, position: int) -> "Shape | None":
        prefix = _list(self.schema.get("prefixItems"))
        child = prefix[position] if position < len(prefix) else self.schema.get("items")
        return self._document.shape(child)

    @cached_property
    def properties(self) -> dict[str, Any]:
        properties = self.schema.get("properties")
        return properties if isinstance(properties, dict) else {}

    def member(self, key: str) -> "Shape | None":
        if key in self.properties:
            return self._document.shape(self.properties[key])
        return self._document.shape(self.schema.get("additionalProperties"))


class _Document:
    """One schema with everything its local references can reach."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._shapes: dict[int, Shape] = {}  # by id() of a part of `_root`, which keeps it alive

    def root_shape(self) -> Shape:
        return self.shape(self._root) or Shape({}, self)

    def shape(self, schema: object) -> Shape | None:
        resolved = self.resolve(schema)
        if resolved is None:
            return None
        if id(resolved) not in self._shapes:
            self._shapes[id(resolved)] = Shape(resolved, self)
        return self._shapes[id(resolved)]

    def resolve(self, schema: object) -> dict[str, Any] | None:
        """Follow `$ref`s and unions with one branch that is not null; None where that leads nowhere."""
        for _ in range(MAX_HOPS):
            if not isinstance(schema, dict):
                return None
            if "$ref" in schema:
                schema = target_of(schema["$ref"], self._root)
            elif "anyOf" in schema or "oneOf" in schema:
                schema = self._only_branch(schema.get("anyOf", schema.get("oneOf")))
            else:
                return schema
        return None

    def _only_branch(self, branches: object) -> object:
        rest = [branch for branch in _list(branches) if not self._is_null(branch)]
        return rest[0] if len(rest) == 1 else None

    def _is_null(self, branch: object) -> bool:
        for _ in range(MAX_HOPS):
            if not isinstance(branch, dict):
                return False
            if "$ref" not in branch:
                return branch.get("type") == "null"
            branch = target_of(branch["$ref"], self._root)
        return False


@dataclass(frozen=True)
class Layout:
    """The compiled parameter layout of a tool: field i of its frames is `names[i]`."""

    names: tuple[str, ...]
    required: frozenset[str]
    is_closed: bool
    """No argument but the declared ones is allowed."""
    digest: bytes
    """SHA-256 of the schema as compact JSON in its own key order: that order is the order of the fields."""
    index: dict[str, int]
    """The inverse of `names`."""
    root: Shape

    @classmethod
    def of(cls, schema: dict[str, Any]) -> Self:
        """Compile a tool's `parameters`. BtifError where it is not JSON or has over 65,534 properties."""
        try:
            text = json.dumps(schema, separators=(",", ":"))
            document = _Document(json.loads(text))
        except (TypeError, ValueError, RecursionError) as fault:
            raise BtifError(f"the schema is not JSON: {fault}", offset=0) from None
        root = document.root_shape()
        names = tuple(root.properties)
        if len(names) >= MAX_FIELDS:
            raise BtifError(f"the schema has {len(names)} properties; the limit is {MAX_FIELDS - 1}", offset=0)
        return cls(
            names=names,
            required=frozenset(name for name in _list(root.schema.get("required")) if isinstance(name, str)),
            is_closed=root.schema.get("additionalProperties") is False,
            digest=hashlib.sha256(text.encode()).digest(),
            index={name: i for i, name in enumerate(names)},
            root=root,
        )

    def argument(self, name: str) -> Shape | None:
        """The shape of a top-level argument, declared or not."""
        return self.root.member(name)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
