"""Owns the levels of a JSON value, which is walked without recursion: a stranger says how deep it is."""

from collections.abc import Iterator
from typing import Any


def levels_of(value: object) -> Iterator[list[dict[str, Any] | list[Any]]]:
    """The objects and arrays of `value`, level by level, from the outermost in; none where it is neither."""
    level = [value] if isinstance(value, dict | list) else []
    while level:
        yield level
        children = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in children if isinstance(child, dict | list)]
