"""Owns which tools there are: marking, loading by name, one id to a tool. Never runs a tool."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self, TypeVar, overload

from pydantic import BaseModel

from midstream.errors import ConfigError
from midstream.messages import ToolAnnotations, ToolSpec
from midstream.protocol.btif import tool_id as id_of_name
from midstream.tools.checking import convert
from midstream.tools.docstring import describe
from midstream.tools.loading import find_objects
from midstream.tools.schema import build_model, schema_of
from midstream.tools.signature import (
    arguments_from_schema,
    arguments_from_signature,
    name_of,
    streamed_argument,
    takes_more,
)

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MARK = "__midstream_tool__"
MAX_TIMEOUT_S = 86400
_MAX_TOOL_ID = 0xFFFF_FFFF


@dataclass(frozen=True)
class Tool:
    """A function that a model may call, its spec and the check of its arguments."""

    spec: ToolSpec
    function: Callable[..., Any]
    """Sync or async; called with keyword arguments."""
    model: type[BaseModel]
    streamed: str | None = None
    """The argument that it is given as an asynchronous iterator, while the model writes it."""

    def call_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for `function` from decoded JSON; what was not given is left to its defaults.

        Raises ToolArgumentsInvalid, which names each argument at fault, its value and what is accepted.
        """
        return convert(self.model, arguments)


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool = True,
    eager: bool = False,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    tool_id: int | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    tool_id: int | None = None,
    **annotations: Any,
) -> F | Callable[[F], F]:
    """Mark a sync or async function as a tool; it can still be called as before.

    The name, the description and the JSON Schema come from the function unless they are given. What it
    promises about itself (`ToolAnnotations`) defaults to the careful side. Raises ConfigError.
    """

    def mark(function: F) -> F:
        if not inspect.isfunction(function):
            raise ConfigError(f"@tool marks plain functions, not {function!r}; wrap it in a def")
        model, parameters_schema = _parameters(function, parameters)
        own_name = function.__name__ if name is None else name
        streamed = streamed_argument(function)
        if streamed is not None and streamed not in parameters_schema.get("required", ()):
            raise ConfigError(f"tool {own_name}: its streamed argument {streamed} has to be in `required`")
        spec = ToolSpec(
            name=own_name,
            tool_id=id_of_name(own_name) if tool_id is None else tool_id,
            description=describe(function)[0] if description is None else description,
            parameters=parameters_schema,
            annotations=ToolAnnotations(**annotations, accepts_partial=streamed is not None),
        )
        setattr(function, _MARK, Tool(_checked(spec), function, model, streamed))
        return function

    return mark if function is None else mark(function)


class Registry:
    """The tools of one server. Two of them never share a name or an id."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[int, Tool] = {}
        for item in tools:
            self.add(item)

    @classmethod
    def load(cls, names: Sequence[str]) -> Self:
        """Registry of the tools that `names` stand for, in their order.

        A name is that of an entry point in the group `midstream.tools`, or `package.module:function`, or
        `package.module` for every tool in it. Raises ConfigError with the nearest known names.
        """
        registry = cls()
        for name in names:
            found = [item for item in find_objects(name) if tool_of(item) is not None]
            if not found:
                raise ConfigError(f"{name!r} holds no tool; mark its functions with @tool")
            for item in found:
                registry.add(item)
        return registry

    def add(self, item: Tool | Callable[..., Any]) -> Tool:
        """Add a tool or a function marked with @tool; adding the same one again changes nothing."""
        added = tool_of(item)
        if added is None:
            raise ConfigError(f"{name_of(item)} is not a tool; mark it with @tool")
        known = self._tools.get(added.spec.tool_id) or self.by_name.get(added.spec.name)
        if known is None:
            self._tools[added.spec.tool_id] = added
        elif known is not added:
            raise ConfigError(
                f"two tools clash: {_shown(known)} and {_shown(added)}; "
                "give one another @tool(name=...) or @tool(tool_id=...)"
            )
        return added

    @property
    def tools(self) -> Mapping[int, Tool]:
        """By tool id."""
        return MappingProxyType(self._tools)

    @property
    def by_name(self) -> Mapping[str, Tool]:
        return {tool.spec.name: tool for tool in self._tools.values()}

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())


def tool_of(item: object) -> Tool | None:
    """The tool that `item` is or is marked as."""
    found = item if isinstance(item, Tool) else inspect.getattr_static(item, _MARK, None)
    if not isinstance(found, Tool):
        return None
    if found is not item and found.function is not item:
        # functools.wraps copied the mark: the wrapper would be left out of every call.
        raise ConfigError(f"{name_of(found.function)}: make @tool its outermost decorator")
    return found


def _parameters(
    function: Callable[..., Any], given: Mapping[str, Any] | None
) -> tuple[type[BaseModel], dict[str, Any]]:
    if given is None:
        model = build_model(function, arguments_from_signature(function))
        return model, schema_of(function, model)
    arguments = arguments_from_schema(function, given)
    is_open = takes_more(function) and given.get("additionalProperties") is not False
    return build_model(function, arguments, is_open=is_open), deepcopy(dict(given))


def _checked(spec: ToolSpec) -> ToolSpec:
    if not _NAME.fullmatch(spec.name):
        raise ConfigError(f"tool name {spec.name!r} is not 1 to 64 letters, digits, '_', '.' or '-'")
    if not 0 <= spec.tool_id <= _MAX_TOOL_ID:
        raise ConfigError(f"tool {spec.name}: tool_id is {spec.tool_id}; it must be 0 to {_MAX_TOOL_ID}")
    if spec.annotations.eager and not spec.annotations.read_only:
        raise ConfigError(f"tool {spec.name}: only a read_only tool can be eager")
    if spec.annotations.accepts_partial and not spec.annotations.read_only:
        raise ConfigError(
            f"tool {spec.name}: it takes its argument while it is written, before the call is sure: mark it read_only"
        )
    timeout_s = spec.annotations.timeout_s
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ConfigError(f"tool {spec.name}: timeout_s is {timeout_s}; it must be over 0 and at most {MAX_TIMEOUT_S}")
    max_concurrency = spec.annotations.max_concurrency
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigError(f"tool {spec.name}: max_concurrency is {max_concurrency}; it must be at least 1")
    return spec


def _shown(tool: Tool) -> str:
    source = f"{tool.function.__module__}:{name_of(tool.function)}"
    return f"{tool.spec.name!r} (id {tool.spec.tool_id:#010x}, {source})"
