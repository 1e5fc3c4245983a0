"""Owns the frozen records that cross a process border. Holds no behaviour beyond derived values.

Gateway → engine: `Command`s (add, abort, resume). Engine → gateway: `Hello` once, then one `StepOutput` a step.
Times are `time.monotonic_ns()`: one clock for all processes of one machine.
"""

from enum import StrEnum
from typing import Any, Literal

import msgspec


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    ERROR = "error"


class RunsOn(StrEnum):
    SERVER = "server"
    CLIENT = "client"


class ToolAnnotations(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool promises about itself. The defaults are the careful side."""

    read_only: bool = False
    """Calling it changes nothing, so it may start before its call has closed."""
    idempotent: bool = False
    """Calling it twice is as good as calling it once."""
    destructive: bool = True
    """It may delete or overwrite; meaningless when `read_only`."""
    eager: bool = False
    """May start as soon as its required arguments are complete; a later argument cancels that run."""
    accepts_partial: bool = False
    """Wants an argument's text while it is being decoded."""
    timeout_s: float | None = None
    """Its own limit for one run; None takes the server's."""
    max_concurrency: int | None = None
    """Runs of it at a time, of all streams; more wait their turn. None: no limit."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model and the watch know it: names and schemas only, never code."""

    name: str
    tool_id: int
    description: str
    parameters: dict[str, Any]
    """JSON Schema of an object; the order of `properties` is the order of BTIF fields."""
    annotations: ToolAnnotations = ToolAnnotations()
    runs_on: RunsOn = RunsOn.SERVER


class ChoiceMode(StrEnum):
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    NONE = "none"


class ToolChoice(msgspec.Struct, frozen=True):
    mode: ChoiceMode = ChoiceMode.AUTO
    names: tuple[str, ...] = ()
    """Named: the tools that the turn calls, in this order."""


class ToolPlan(msgspec.Struct, frozen=True):
    """Everything that a request's watch is built from."""

    dialect: str
    tools: tuple[ToolSpec, ...]
    choice: ToolChoice = ToolChoice()
    parallel: bool = True
    """False: at most one call a turn."""
    reasoning_markers: tuple[str, str] | None = None
    end_token_id: int | None = None
    """What the model's template ends a turn with; None takes the first of its end tokens."""
    is_interleaved: bool = False
    """Results join while the model goes on writing; calls that must be made do not end the turn."""
    banned_token_ids: tuple[int, ...] = ()
    """Tokens of the frames around results, which only the server may write."""
    is_reasoning: bool = False
    """The prompt has opened the reasoning: the turn begins inside it."""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one sequence is sampled. Validated where it enters: the gateway."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    """Leave the stop string in the text."""


# --- gateway → engine ---


class AddRequest(msgspec.Struct, frozen=True, tag="add"):
    request_id: int
    token_ids: list[int]
    sampling: SamplingParams
    salt: bytes = b""
    """Owner of the prefix blocks; two owners never share KV."""
    tool_plan: ToolPlan | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Free everything of the request within one step. A request that is gone already is ignored."""

    request_id: int


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Append `token_ids` (a tool's rendered results) to a parked sequence and go on decoding."""

    request_id: int
    token_ids: list[int]
    tool_plan: ToolPlan | None = None


class Inject(msgspec.Struct, frozen=True, tag="inject"):
    """Put one call's result into a sequence: at once where it is parked, where it decodes at the next clean boundary.

    `token_ids` follow a turn's end token, which the engine puts before them where the model has not written it.
    """

    request_id: int
    token_ids: list[int]
    tool_plan: ToolPlan | None = None
    """Of the turn that follows."""


Command = AddRequest | Abort | Resume | Inject


class Commands(msgspec.Struct, frozen=True):
    commands: list[Command]


# --- engine → gateway ---


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """When something happened in a sequence's decoding."""

    pass_number: int
    """Forward passes since the turn began; the pass that yields the turn's first token is pass 1."""
    token_index: int
    """Completion tokens of the turn so far, forced ones included."""
    time_ns: int
    """`time.monotonic_ns()` at which the token was sampled."""


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning"):
    text: str


class CallRouted(msgspec.Struct, frozen=True, tag="routed"):
    """The tool of call `index` is known. `index` counts the calls of the whole stream from 0."""

    index: int
    name: str
    runs_on: RunsOn
    mark: Mark


class CallNamed(msgspec.Struct, frozen=True, tag="named"):
    """The name of call `index` is complete: clients may be shown it."""

    index: int
    name: str
    call_id: str | None = None
    """The model's own id of the call, in dialects whose calls carry one: the template needs it back as it is."""


class ArgumentsDelta(msgspec.Struct, frozen=True, tag="arguments"):
    """The next piece of the raw JSON text of the arguments object of call `index`."""

    index: int
    text: str


class CallPartial(msgspec.Struct, frozen=True, tag="partial"):
    """The next piece of a text argument of call `index`, for a tool that wants it while it is written."""

    index: int
    field_index: int
    """The argument's place in the schema."""
    text: str


class CallReady(msgspec.Struct, frozen=True, tag="ready"):
    """Call `index` may run with the arguments in the BTIF `frame`."""

    index: int
    frame: bytes
    mark: Mark
    is_closed: bool
    """False: a read-only tool whose call has not closed yet; a cut now cancels it."""


class CallClosed(msgspec.Struct, frozen=True, tag="closed"):
    """The arguments object of call `index` is complete and valid."""

    index: int
    mark: Mark


class CallAbandoned(msgspec.Struct, frozen=True, tag="abandoned"):
    """Call `index` turned out to be none, to be invalid, or was cut. Nothing of it may run.

    Unless it was cut, what the model wrote for it comes as a `TextDelta`: nothing is silent.
    """

    index: int
    reason: str
    is_cut: bool = False


WatchEvent = (
    TextDelta
    | ReasoningDelta
    | CallRouted
    | CallNamed
    | ArgumentsDelta
    | CallPartial
    | CallReady
    | CallClosed
    | CallAbandoned
)


class TokenCounts(msgspec.Struct, frozen=True, array_like=True):
    """Where a sequence's tokens came from. All are totals since the request was added."""

    prompt: int
    generated: int
    """Completion tokens: sampled and forced."""
    injected: int
    cached: int
    """Prompt tokens whose KV was found."""
    computed: int
    """Tokens that went through the model, recomputation included."""
    passes: int


class Finished(msgspec.Struct, frozen=True):
    """The one and only end of a request."""

    reason: FinishReason
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it, if one did."""
    error: str | None = None


class SequenceOutput(msgspec.Struct, frozen=True):
    request_id: int
    token_ids: list[int]
    """New completion tokens, in order."""
    events: list[WatchEvent]
    counts: TokenCounts
    injected_token_ids: list[int] = []
    """What was put into the sequence after `token_ids`: the results of the oldest `Inject`s."""
    num_injects: int = 0
    """How many `Inject`s those are."""
    is_parked: bool = False
    """The turn ended with server calls: the sequence waits for a `Resume`, an `Inject` or an `Abort`."""
    finished: Finished | None = None


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    num_running: int
    num_waiting: int
    num_parked: int
    num_blocks: int
    num_free_blocks: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache since the start."""
    prefix_hits: int
    preemptions: int
    drafted: int
    """Tokens guessed and checked since the start."""
    drafts_accepted: int
    parked_kept: int = 0
    """Times that a sequence waited for its tools and kept its blocks, and that one gave them back."""
    parked_released: int = 0


class StepOutput(msgspec.Struct, frozen=True, tag="step"):
    outputs: list[SequenceOutput]
    stats: EngineStats


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """The engine cannot start; the message is for the operator."""

    message: str


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The engine's first message: it is loaded and what it can do."""

    max_model_len: int
    num_blocks: int
    block_size: int
    load_s: float


EngineMessage = Hello | LoadFailed | StepOutput


# --- the first frame that a new engine process reads ---


class EngineOptions(msgspec.Struct, frozen=True):
    """What an engine is built from. Validated where it enters: `config.py`."""

    model: str
    dtype: str
    kv_cache_bytes: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    """None takes the model's own, as far as the KV budget holds it."""
    num_threads: int | None
    """None takes every core."""
    kernels: bool = True
    """Take the compiled CPU kernels where they serve the model."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a CUDA device where torch sees one."""
    prompt_lookup: bool = True
    """Guess tokens from what a sequence has read, and check several in one pass."""
    quantize: Literal["q8", "q4"] | None = None
    """Round weights that are floats at load; the kernels alone can."""
    shown_token_ids: tuple[int, ...] = ()
    """Special tokens that are text to the watch: the markers of the model's tool dialect."""
