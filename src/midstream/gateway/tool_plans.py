"""Owns the way from a request's tool fields to a `ToolPlan`. Watches and runs nothing."""

from collections.abc import Callable, Mapping, Set
from functools import lru_cache
from typing import Any

import msgspec
import orjson

from midstream.errors import BtifError, RequestError
from midstream.gateway.chat_request import ChatRequest, NamedChoice, ToolBody
from midstream.gateway.fields import nearest, shortened
from midstream.gateway.offload import sized
from midstream.messages import ChoiceMode, RunsOn, ToolChoice, ToolPlan, ToolSpec
from midstream.protocol.btif import Layout, tool_id
from midstream.routing.dispatching.dispatcher import ServerTool
from midstream.routing.dispatching.injection import NO_FRAME, ResultFrame
from midstream.routing.watching.dialects import dialect_named
from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.grammar import GRAMMAR_LIMIT, MAX_CHARACTERS, check_tool

_NO_PARAMETERS = {"type": "object", "properties": {}}

# A schema is checked in about a millisecond, the time of so much text.
_CHARACTERS_PER_CHECK = 1024


class ToolPlans:
    """Makes the plan of each request. One per gateway."""

    def __init__(
        self,
        dialect: Dialect,
        server_tools: Mapping[str, ServerTool],
        reasoning_markers: tuple[str, str] | None,
        new_id: Callable[[str], str],
        frame: ResultFrame = NO_FRAME,
    ) -> None:
        """`frame`: how results stand in the model's template."""
        self._dialect = dialect
        self._server_tools = server_tools
        self._reasoning_markers = dialect.reasoning or reasoning_markers
        self._new_id = new_id
        self.frame = frame

    def new_call_id(self, name: str, number: int) -> str:
        """The id of call `number` of an answer, in the form that the model's template asks for."""
        unique = self._new_id("call_")
        return self._dialect.call_id(unique, name, number) if self._dialect.call_id else unique

    def begun(self, plan: ToolPlan | None, prompt_end: str) -> ToolPlan | None:
        """`plan` for a turn whose prompt ends in this text: many templates open the reasoning themselves."""
        markers = self._reasoning_markers
        if plan is None or markers is None or not prompt_end.rstrip().endswith(markers[0].rstrip()):
            return plan
        return msgspec.structs.replace(plan, is_reasoning=True)

    async def plan(self, request: ChatRequest) -> ToolPlan | None:
        """None when there is nothing to watch for. Raises RequestError that names the field at fault."""
        schemas = [orjson.dumps(body.function.parameters or _NO_PARAMETERS) for body in request.tools]
        size = _CHARACTERS_PER_CHECK * len(schemas) + sum(map(len, schemas))
        return await sized(size, lambda: self._plan(request, schemas))

    def _plan(self, request: ChatRequest, schemas: list[bytes]) -> ToolPlan | None:
        server = self._server_specs(request)
        self._check_schemas(request, schemas)
        client = [_client_spec(body) for body in request.tools]
        tools = (*server, *client)
        names: set[str] = set()
        for tool in tools:
            if tool.name in names:
                raise RequestError(f"two tools are named {tool.name!r}; rename one", param="tools")
            names.add(tool.name)
        choice = _choice(request, names, self._dialect)
        if not tools and self._reasoning_markers is None and not self._dialect.reads_without_tools:
            return None
        return ToolPlan(
            self._dialect.name,
            tools,
            choice,
            request.parallel_tool_calls,
            self._reasoning_markers,
            is_interleaved=request.tool_mode == "interleaved" and bool(server),
            banned_token_ids=self.frame.banned_token_ids if tools else (),
            end_token_id=self.frame.end_token_id,
        )

    def _server_specs(self, request: ChatRequest) -> list[ToolSpec]:
        known = self._server_tools
        if request.server_tools == "all":
            return [tool.spec for tool in known.values()]
        for name in request.server_tools:
            if name not in known:
                shown = shortened(name)
                hint = nearest(shown, known) or f"; known: {', '.join(sorted(known)) or 'none'}"
                raise RequestError(f"no server tool {shown!r}{hint}", param="server_tools", code="unknown_tool")
        return [known[name].spec for name in dict.fromkeys(request.server_tools)]

    def _check_schemas(self, request: ChatRequest, schemas: list[bytes]) -> None:
        length = 0
        for index, (body, schema) in enumerate(zip(request.tools, schemas, strict=True)):
            param = f"tools.{index}.function.parameters"
            length += _grammar_length(body.function.name, schema, self._dialect.name, param)
            if length > MAX_CHARACTERS:
                raise RequestError(f"the tools up to number {index} are too large; {GRAMMAR_LIMIT}", param="tools")


def _client_spec(body: ToolBody) -> ToolSpec:
    function = body.function
    return ToolSpec(
        name=function.name,
        tool_id=tool_id(function.name),
        description=function.description or "",
        parameters=function.parameters or _NO_PARAMETERS,
        runs_on=RunsOn.CLIENT,
    )


def told_of_mode(messages: list[dict[str, Any]], plan: ToolPlan | None) -> list[dict[str, Any]]:
    """The messages, with a word to the model that results arrive while it writes, where they do."""
    if plan is None or not plan.is_interleaved:
        return messages
    note, first = dialect_named(plan.dialect).interleaved_note, messages[0]
    if first["role"] != "system" or not isinstance(first["content"], str):
        return [{"role": "system", "content": note}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{note}"}, *messages[1:]]


def template_tools(plan: ToolPlan | None) -> list[dict[str, Any]] | None:
    """The tools as chat templates expect them."""
    if plan is None or not plan.tools:
        return None
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in plan.tools
    ]


def _choice(request: ChatRequest, names: Set[str], dialect: Dialect) -> ToolChoice:
    choice = request.tool_choice
    if isinstance(choice, NamedChoice):
        choice = [choice]
    if isinstance(choice, list):
        for named in choice:
            _check_named(named.function.name, names)
        if len(choice) > 1 and not request.parallel_tool_calls:
            raise RequestError(
                f"tool_choice names {len(choice)} calls and parallel_tool_calls is false; name one, or leave it out",
                param="tool_choice",
            )
        if len(choice) > 1 and dialect.is_single:
            raise RequestError(
                f"tool_choice names {len(choice)} calls; the dialect {dialect.name} has one a turn: name one",
                param="tool_choice",
            )
        return ToolChoice(ChoiceMode.NAMED, tuple(named.function.name for named in choice))
    if choice == "required" and not names:
        raise RequestError(
            "tool_choice is 'required' and the request has no tools; give some, or leave it out", param="tool_choice"
        )
    return ToolChoice(ChoiceMode(choice or "auto") if names else ChoiceMode.NONE)


def _check_named(name: str, names: Set[str]) -> None:
    if name not in names:
        name = shortened(name)
        hint = nearest(name, names) or "; name one of them"
        raise RequestError(f"tool_choice names {name!r}, which is not among the tools{hint}", param="tool_choice")


@lru_cache(maxsize=1024)
def _grammar_length(name: str, parameters_json: bytes, dialect: str, param: str) -> int:
    """Raises RequestError for a schema that is none. Cached: the same tools come with every turn."""
    parameters = orjson.loads(parameters_json)
    kind = parameters.get("type", "object")
    if kind != "object":
        raise RequestError(
            f"the parameters of tool {name!r} have type {shortened(str(kind))!r}; it must be 'object'", param=param
        )
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict):
        raise RequestError(f"the properties of tool {name!r} are no object", param=param)
    required = parameters.get("required", [])
    if not isinstance(required, list) or not all(isinstance(item, str) for item in required):
        raise RequestError(f"`required` of tool {name!r} is no list of names", param=param)
    try:
        Layout.of(parameters)
    except BtifError as error:
        raise RequestError(f"the parameters of tool {name!r}: {error.message}", param=param) from None
    spec = ToolSpec(name, tool_id(name), "", parameters, runs_on=RunsOn.CLIENT)
    return check_tool(spec, dialect_named(dialect), param)
