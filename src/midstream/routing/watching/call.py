"""Owns one call while it is decoded: its frame as it fills, and whether its tool may run. Never runs it."""

import json
from functools import cached_property

from midstream.errors import BtifError
from midstream.messages import RunsOn, ToolSpec
from midstream.protocol.btif import FrameBuilder, Layout
from midstream.protocol.references import resolved
from midstream.routing.watching.coercion import coerce
from midstream.routing.watching.schema import properties_of, types_of


class WatchedTool:
    """A tool whose layout is compiled when it is called: a request may bring a thousand of them."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.is_server = spec.runs_on is RunsOn.SERVER
        self.takes_parts = self.is_server and spec.annotations.accepts_partial
        self._types: dict[str, tuple[str, ...]] = {}

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.spec.parameters)

    def types_of(self, name: str) -> tuple[str, ...]:
        """The types of an argument; empty where the tool does not say."""
        if name not in self._types:
            parameters = self.spec.parameters
            declared = resolved(parameters, parameters)
            schema = dict(properties_of(declared)).get(name, declared.get("additionalProperties"))
            self._types[name] = types_of(schema, parameters) if isinstance(schema, dict) else ()
        return self._types[name]


class Call:
    """The call with number `index` of its stream, from ROUTED on."""

    def __init__(self, index: int, tool: WatchedTool) -> None:
        self.index = index
        self.tool = tool
        self.is_named = False
        self.dispatched: bytes | None = None
        """The frame that was last said to be ready."""
        self.has_text = False
        """The model itself writes its arguments as JSON text."""
        self._builder = FrameBuilder(tool.spec.tool_id, tool.layout)
        self._names: set[str] = set()

    def coerced(self, name: str, text: str) -> str | None:
        """The JSON of an argument that was written without a type; None when its schema has no such value."""
        return coerce(text, self.tool.types_of(name))

    def json_piece(self, name: str, value_json: str) -> str:
        """The next piece of the JSON text of arguments that the model writes in another syntax."""
        opening = ", " if len(self._names) else "{"
        return f"{opening}{json.dumps(name, ensure_ascii=False)}: {value_json}"

    def json_end(self) -> str:
        return "}" if len(self._names) else "{}"

    def put(self, name: str, value_json: str) -> str | None:
        """Take a complete argument. Returns why the call is invalid, if it is now."""
        layout = self.tool.layout
        if layout.is_closed and name not in layout.index:
            return f"{self.tool.spec.name} has no argument {name!r}"
        try:
            self._builder.put(name, value_json)
        except BtifError as error:
            return f"argument {name!r}: {error.message}"
        self._names.add(name)
        return None

    def has(self, name: str) -> bool:
        """An argument of this name has been taken."""
        return name in self._names

    def ready_frame(self) -> bytes | None:
        """The frame to run before the call has closed, if the tool may start now with one that is new.

        Read-only tools start when every declared argument is there and no other can come; eager ones as soon as
        the required ones are. Source: design, "A tool call's life".
        """
        annotations, layout = self.tool.spec.annotations, self.tool.layout
        if not (self.tool.is_server and annotations.read_only and len(self._names)):
            return None
        is_whole = layout.is_closed and len(self._names) == len(layout.names)
        is_eager = annotations.eager and layout.required and not self._builder.missing_required
        return self._new_frame() if is_whole or is_eager else None

    def close(self) -> str | None:
        """The arguments object has ended. Returns why the call is invalid, if it is."""
        missing = self._builder.missing_required
        if missing:
            return f"{self.tool.spec.name} lacks its required argument{'s' * (len(missing) > 1)} " + ", ".join(
                sorted(missing)
            )
        return None

    def closing_frame(self) -> bytes | None:
        """The frame of the closed call, unless that very frame runs already."""
        return self._new_frame() if self.tool.is_server else None

    def _new_frame(self) -> bytes | None:
        frame = self._builder.build()
        if frame == self.dispatched:
            return None
        self.dispatched = frame
        return frame
