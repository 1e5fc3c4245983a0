"""Owns the tests of marking functions as tools and of loading them by name."""

import asyncio
import functools
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from midstream.errors import ConfigError
from midstream.messages import RunsOn, ToolAnnotations
from midstream.protocol.btif import tool_id
from midstream.tools import Registry, Tool, tool
from midstream.tools.registry import tool_of


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool(
    name="slow.double",
    description="Later.",
    read_only=True,
    idempotent=True,
    destructive=False,
    timeout_s=2.5,
)
async def slow_double(number: int = 1) -> int:
    """Not this."""
    return 2 * number


def clash_name() -> Tool:
    @tool(name="double", tool_id=1)
    def other() -> None: ...

    return found(other)


def found(item: object) -> Tool:
    result = tool_of(item)
    assert result is not None
    return result


def test_a_marked_function_is_still_itself() -> None:
    assert double(4) == 8
    assert asyncio.run(slow_double(3)) == 6
    assert double.__name__ == "double"


def test_the_spec_comes_from_the_function_on_the_careful_side() -> None:
    spec = found(double).spec
    assert (spec.name, spec.description, spec.runs_on) == ("double", "Double a number.", RunsOn.SERVER)
    assert spec.tool_id == tool_id("double")
    assert spec.annotations == ToolAnnotations()


def test_what_is_given_wins() -> None:
    spec = found(slow_double).spec
    assert (spec.name, spec.description, spec.tool_id) == ("slow.double", "Later.", tool_id("slow.double"))
    assert spec.annotations == ToolAnnotations(read_only=True, idempotent=True, destructive=False, timeout_s=2.5)


def test_a_tool_id_can_be_set() -> None:
    @tool(tool_id=3)
    def f() -> None: ...

    assert Registry([f]).tools[3].spec.name == "f"


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "naïve", "a\n"])
def test_names_that_no_api_takes_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="tool name"):
        tool(name=name)(lambda: None)


def test_options_that_make_no_sense_are_refused() -> None:
    def f() -> None: ...

    with pytest.raises(ConfigError, match="read_only"):
        tool(eager=True)(f)
    with pytest.raises(ConfigError, match="timeout_s is 0"):
        tool(timeout_s=0)(f)
    with pytest.raises(ConfigError, match="max_concurrency is 0"):
        tool(max_concurrency=0)(f)
    with pytest.raises(ConfigError, match="at most 86400"):
        tool(timeout_s=86401)(f)
    with pytest.raises(ConfigError, match="tool_id is 4294967296"):
        tool(tool_id=2**32)(f)
    with pytest.raises(ConfigError, match="plain functions"):
        tool(len)


def test_a_streamed_argument_is_text_to_the_model_and_makes_the_tool_accept_parts() -> None:
    @tool(read_only=True)
    async def run_code(code: AsyncIterator[str]) -> str:
        """Run it.

        Args:
            code: Python.
        """
        return "".join([piece async for piece in code])

    made = tool_of(run_code)
    assert made is not None
    assert made.streamed == "code"
    assert made.spec.annotations.accepts_partial
    assert made.spec.parameters["properties"] == {"code": {"type": "string", "description": "Python."}}


def test_a_streamed_argument_is_refused_where_it_cannot_work() -> None:
    async def two(a: AsyncIterator[str], b: int = 1) -> None: ...
    def on_a_thread(a: AsyncIterator[str]) -> None: ...
    async def may_change_something(a: AsyncIterator[str]) -> None: ...

    with pytest.raises(ConfigError, match="the only one"):
        tool(read_only=True)(two)
    with pytest.raises(ConfigError, match="async def"):
        tool(read_only=True)(on_a_thread)

    async def may_be_missing(a: AsyncIterator[str] | None = None) -> None: ...
    async def has_a_default(a: AsyncIterator[str] = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    with pytest.raises(ConfigError, match="has no default"):
        tool(read_only=True)(has_a_default)
    with pytest.raises(ConfigError, match="no JSON form"):
        tool(read_only=True)(may_be_missing)
    with pytest.raises(ConfigError, match="read_only"):
        tool(may_change_something)


def test_a_registry_finds_by_id_and_by_name_in_order() -> None:
    registry = Registry([double, slow_double])
    assert [spec.name for spec in registry.specs()] == ["double", "slow.double"]
    assert registry.tools[tool_id("double")] is registry.by_name["double"]
    assert registry.by_name["double"].call_arguments({"number": 2}) == {"number": 2}


def test_adding_the_same_tool_again_changes_nothing() -> None:
    registry = Registry([double, double])
    assert registry.add(double) is found(double)
    assert len(registry.tools) == 1


def test_two_tools_with_one_name_name_both() -> None:
    with pytest.raises(ConfigError, match=r"test_registry:double.*test_registry:clash_name.*other"):
        Registry([double, clash_name()])


def test_two_tools_with_one_id_name_both() -> None:
    @tool(tool_id=tool_id("double"))
    def other() -> None: ...

    with pytest.raises(ConfigError, match=r"'double'.*'other'.*tool_id="):
        Registry([double, other])


def test_a_tool_whose_id_and_name_meet_two_tools_is_refused() -> None:
    @tool(tool_id=tool_id("slow.double"), name="double")
    def other() -> None: ...

    with pytest.raises(ConfigError, match="clash"):
        Registry([double, slow_double, other])


def test_an_unmarked_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="mark it with @tool"):
        Registry([lambda: None])


def test_a_wrapper_around_a_tool_is_refused_rather_than_left_out() -> None:
    @functools.wraps(double)
    def wrapper(number: int) -> int:
        return double(number) + 1

    with pytest.raises(ConfigError, match="outermost"):
        Registry([wrapper])


# --- loading ---

MODULE = """
from midstream.tools import tool

@tool
def alpha(x: int) -> int:
    return x

@tool
def beta() -> int:
    return 1

def plain() -> int:
    return 2

pair = [alpha, beta]
"""


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "user_tools.py").write_text(MODULE)
    (tmp_path / "needs_missing.py").write_text("import surely_not_installed")
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "bad_tool.py").write_text("from midstream.tools import tool\n@tool\ndef f(x): ...")
    (tmp_path / "empty.py").write_text("")
    info = tmp_path / "user_tools-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: user-tools\nVersion: 1.0\n")
    points = [
        "al = user_tools:alpha",
        "all = user_tools",
        "pair = user_tools:pair",
        "gone = user_tools:nothing",
    ]
    (info / "entry_points.txt").write_text("\n".join(["[midstream.tools]", *points]))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("user_tools", "needs_missing", "broken", "bad_tool", "empty"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def names(*load: str) -> list[str]:
    return [spec.name for spec in Registry.load(load).specs()]


@pytest.mark.usefixtures("user_code")
def test_load_by_entry_point() -> None:
    assert names("al") == ["alpha"]
    assert names("all") == ["alpha", "beta"]
    assert names("pair") == ["alpha", "beta"]


@pytest.mark.usefixtures("user_code")
def test_load_by_module_path() -> None:
    assert names("user_tools:beta", "user_tools:alpha") == ["beta", "alpha"]
    assert names("user_tools") == ["alpha", "beta"]
    assert names("user_tools:pair", "al") == ["alpha", "beta"]
    assert names() == []


@pytest.mark.usefixtures("user_code")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pairs", "no tool or module 'pairs'; did you mean pair"),
        ("user_toolz", "no tool or module 'user_toolz'"),
        ("user_tools:alhpa", "has no 'alhpa'; did you mean alpha"),
        ("user_tools:plain", "'user_tools:plain' holds no tool"),
        ("empty", "'empty' holds no tool"),
        ("needs_missing", "needs_missing cannot be imported: ModuleNotFoundError: .*surely_not_installed"),
        ("broken", "broken cannot be imported: ZeroDivisionError"),
        ("bad_tool", "tool f, parameter x: it has no type hint"),
        ("gone", "entry point gone .* cannot be loaded: AttributeError"),
        ("user_tools.deeper", "no tool or module 'user_tools.deeper'"),
        ("", "no tool or module ''"),
        (".relative", "no tool or module '.relative'"),
    ],
)
def test_what_cannot_be_loaded_says_why(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Registry.load([name])


def test_the_demo_tools_load_by_module_path() -> None:
    assert sorted(names("midstream.tools.demo")) == [
        "calculate",
        "flight_search",
        "flight_status",
        "now",
        "on_time_rate",
    ]
    assert names("midstream.tools.demo:flight_status") == ["flight_status"]
