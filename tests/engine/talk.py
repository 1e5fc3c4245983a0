"""Owns the conversation of a test with a stepped engine: ask by script, read what came back by request."""

from collections.abc import Mapping, Sequence
from typing import Any

from midstream.messages import (
    Abort,
    AddRequest,
    ChoiceMode,
    Finished,
    Resume,
    RunsOn,
    SamplingParams,
    SequenceOutput,
    TextDelta,
    ToolChoice,
    ToolPlan,
    ToolSpec,
    WatchEvent,
)
from midstream.modelfile.tokenizer import Tokenizer
from tests.support.engines import SteppedEngine
from tests.support.scripted import Turn

NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
PING = ToolSpec("ping", 0, "Answers.", NO_PARAMETERS)
CLIENT_PING = ToolSpec("ping", 0, "Answers.", NO_PARAMETERS, runs_on=RunsOn.CLIENT)
PING_CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


def plan(mode: ChoiceMode = ChoiceMode.AUTO, tool: ToolSpec = PING) -> ToolPlan:
    names = (tool.name,) if mode is ChoiceMode.NAMED else ()
    return ToolPlan("hermes", (tool,), ToolChoice(mode, names))


class Talk(SteppedEngine):
    """A script is what the model writes, in turns."""

    def __init__(self, tokenizer: Tokenizer, scripts: Mapping[str, Sequence[Turn]], **limits: int) -> None:
        super().__init__(tokenizer, scripts, **limits)

    def prompt(self, script: str) -> list[int]:
        return self.tokenizer.encode(f"[script {script}] go")

    def ask(self, request_id: int, script: str, tools: ToolPlan | None = None, **sampling: Any) -> None:
        params = SamplingParams(**({"max_tokens": 200, "temperature": 0} | sampling))
        self.port.commands.append(AddRequest(request_id, self.prompt(script), params, tool_plan=tools))

    def resume(self, request_id: int, text: str, tools: ToolPlan | None = None) -> list[int]:
        token_ids = self.tokenizer.encode(text)
        self.port.commands.append(Resume(request_id, token_ids, tools))
        return token_ids

    def abort(self, request_id: int) -> None:
        self.port.commands.append(Abort(request_id))

    def outputs(self, request_id: int) -> list[SequenceOutput]:
        return [output for output in self.port.outputs if output.request_id == request_id]

    def token_ids(self, request_id: int) -> list[int]:
        return [token_id for output in self.outputs(request_id) for token_id in output.token_ids]

    def texts(self, request_id: int) -> list[str]:
        return [event.text for event in self.port.events(request_id) if isinstance(event, TextDelta)]

    def text(self, request_id: int) -> str:
        return "".join(self.texts(request_id))

    def calls(self, request_id: int) -> list[WatchEvent]:
        return [event for event in self.port.events(request_id) if not isinstance(event, TextDelta)]

    def ends(self, request_id: int) -> list[Finished]:
        return [output.finished for output in self.outputs(request_id) if output.finished is not None]

    def is_parked(self, request_id: int) -> bool:
        return bool(self.outputs(request_id)) and self.outputs(request_id)[-1].is_parked
