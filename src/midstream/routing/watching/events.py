"""Owns what a dialect's parser says of the text it reads. A parser knows no tools, no schemas and no tokens."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class CallBegin:
    """A call's marker is complete."""


@dataclass(frozen=True)
class NamePart:
    """The name so far: it may go on."""

    text: str


@dataclass(frozen=True)
class NameEnd:
    name: str
    call_id: str | None = None
    """The model's own id for the call, in dialects whose calls carry one."""


@dataclass(frozen=True)
class ArgumentsText:
    """The next piece of the raw text of the arguments object."""

    text: str


@dataclass(frozen=True)
class ArgumentEnd:
    """One argument is complete; `json` is the raw text of its value."""

    name: str
    json: str


@dataclass(frozen=True)
class ArgumentPart:
    """The next piece of a text argument that is still being written; told only where it was asked for."""

    name: str
    text: str


@dataclass(frozen=True)
class TypedArgument:
    """One argument is complete, written in a syntax that is not JSON; `json` is its value as JSON."""

    name: str
    json: str


@dataclass(frozen=True)
class RawArgument:
    """One argument is complete, in a dialect without types: what `text` means is for the schema to say."""

    name: str
    text: str


@dataclass(frozen=True)
class ArgumentsEnd:
    """The arguments object has closed."""


@dataclass(frozen=True)
class CallEnd:
    """Nothing more belongs to the call."""


@dataclass(frozen=True)
class CallInvalid:
    """What began as a call is none; `raw_text` is all of it so far, marker included."""

    raw_text: str
    reason: str
    is_cut: bool = False


ParseEvent = (
    Text
    | Reasoning
    | CallBegin
    | NamePart
    | NameEnd
    | ArgumentsText
    | ArgumentEnd
    | ArgumentPart
    | TypedArgument
    | RawArgument
    | ArgumentsEnd
    | CallEnd
    | CallInvalid
)
