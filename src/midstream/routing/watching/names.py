"""Owns the question which tool a half-written name can still become."""

from collections.abc import Iterable


class NameTrie:
    """The enabled tools' names. A lookup costs O(length of the prefix), however many tools there are."""

    def __init__(self, names: Iterable[str]) -> None:
        self._root: _Node = _Node()
        for name in names:
            self._add(name)

    def resolve(self, prefix: str) -> str | None:
        """The only name that begins with `prefix`; None while there are several, or when there is none.

        A name that is itself the beginning of another one stays ambiguous until its delimiter has come.
        """
        node = self._root
        for character in prefix:
            found = node.children.get(character)
            if found is None:
                return None
            node = found
        return node.only_name

    def _add(self, name: str) -> None:
        node = self._root
        node.count(name)
        for character in name:
            node = node.children.setdefault(character, _Node())
            node.count(name)


class _Node:
    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.only_name: str | None = None
        self._num_names = 0

    def count(self, name: str) -> None:
        self._num_names += 1
        self.only_name = name if self._num_names == 1 else None
