"""Which tool a half-written name can still become, held against the plain question asked of every name."""

from hypothesis import given
from hypothesis import strategies as st

from midstream.routing.watching.names import NameTrie

NAMES = st.lists(st.text("ab_", min_size=1, max_size=5), unique=True, max_size=8)


@given(NAMES, st.text("ab_", max_size=6))
def test_a_prefix_is_resolved_when_one_name_begins_with_it(names: list[str], prefix: str) -> None:
    possible = [name for name in names if name.startswith(prefix)]
    assert NameTrie(names).resolve(prefix) == (possible[0] if len(possible) == 1 else None)


def test_a_name_that_begins_another_waits_for_its_delimiter() -> None:
    trie = NameTrie(["get", "get_all"])
    assert trie.resolve("get") is None
    assert trie.resolve("get_") == "get_all"


def test_the_only_tool_is_known_before_its_name_begins() -> None:
    assert NameTrie(["get"]).resolve("") == "get"
    assert NameTrie([]).resolve("") is None


def test_a_thousand_names_are_told_apart_at_their_last_difference() -> None:
    names = [f"tool_{number:03}" for number in range(1000)]
    trie = NameTrie(names)
    for name in names:
        assert trie.resolve(name[:-1]) is None
        assert trie.resolve(name) == name
    assert trie.resolve("tool_1000") is None
