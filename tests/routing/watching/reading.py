"""Owns reading a turn, cut in any way, as the engine does: detokenizer, stop strings, watch. Samples nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from midstream.engine.detokenizer import Detokenizer
from midstream.engine.sequence import Sequence as Seq
from midstream.engine.turn import Turn
from midstream.messages import (
    AddRequest,
    ArgumentsDelta,
    CallAbandoned,
    CallClosed,
    CallNamed,
    CallReady,
    CallRouted,
    FinishReason,
    ReasoningDelta,
    RunsOn,
    SamplingParams,
    TextDelta,
    ToolAnnotations,
    ToolPlan,
    ToolSpec,
    WatchEvent,
)
from midstream.protocol.btif import Layout, decode_arguments, tool_id
from midstream.routing.watching.watch import CallWatch

CAREFUL = ToolAnnotations()


def spec(
    name: str,
    parameters: dict[str, Any] | None = None,
    annotations: ToolAnnotations = CAREFUL,
    runs_on: RunsOn = RunsOn.SERVER,
) -> ToolSpec:
    """A tool; without `parameters` it takes none."""
    schema = parameters or {"type": "object", "properties": {}}
    return ToolSpec(name, tool_id(name), "", schema, annotations, runs_on)


@dataclass
class Reading:
    """What became of one turn."""

    events: list[WatchEvent]
    finish: FinishReason
    is_parked: bool = False
    plan: ToolPlan = field(repr=False, default_factory=lambda: ToolPlan("hermes", ()))

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def reasoning(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, ReasoningDelta))

    @property
    def kinds(self) -> list[str]:
        """The names of the calls' events, without the texts."""
        texts = (TextDelta, ReasoningDelta, ArgumentsDelta)
        return [type(event).__name__.removeprefix("Call") for event in self.events if not isinstance(event, texts)]

    @property
    def names(self) -> dict[int, str]:
        """The calls that a client may have been shown, by index."""
        return {event.index: event.name for event in self.events if isinstance(event, CallNamed)}

    @property
    def routed(self) -> list[str]:
        return [event.name for event in self.events if isinstance(event, CallRouted)]

    @property
    def closed(self) -> list[int]:
        return [event.index for event in self.events if isinstance(event, CallClosed)]

    @property
    def abandoned(self) -> list[CallAbandoned]:
        return [event for event in self.events if isinstance(event, CallAbandoned)]

    def arguments_text(self, index: int) -> str:
        deltas = [event for event in self.events if isinstance(event, ArgumentsDelta)]
        return "".join(delta.text for delta in deltas if delta.index == index)

    @property
    def frames(self) -> list[bytes]:
        return [event.frame for event in self.events if isinstance(event, CallReady)]

    @property
    def runs(self) -> list[tuple[str, dict[str, Any]]]:
        """(name, arguments) of every frame that was ready, in order."""
        tools = {tool.name: tool for tool in self.plan.tools}
        routed = {event.index: event.name for event in self.events if isinstance(event, CallRouted)}
        runs = []
        for event in self.events:
            if isinstance(event, CallReady):
                name = routed[event.index]
                runs.append((name, decode_arguments(event.frame, Layout.of(tools[name].parameters))))
        return runs


def read(
    watch: CallWatch,
    pieces: Iterable[str | bytes],
    *,
    stop: Sequence[str] = (),
    end: FinishReason = FinishReason.STOP,
    plan: ToolPlan | None = None,
) -> Reading:
    """Feed `pieces` as tokens through the engine's own `Turn`, then end it."""
    tokens = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    request = AddRequest(1, [0], SamplingParams(max_tokens=1 << 20, stop=tuple(stop)))
    turn = Turn(Seq(request, watch, Detokenizer(tokens)), now_ns=0)
    for token_id in range(len(tokens)):
        turn.append(token_id)
        turn.feed(token_id, looks_for_stop=True)
        if turn.has_ended:
            break
    else:
        turn.end(end)
    reason = FinishReason.STOP if turn.finished is None else turn.finished.reason
    return Reading(turn.events, reason, turn.is_parked, plan or ToolPlan("hermes", ()))
