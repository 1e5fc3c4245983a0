"""Owns what a dialect declares. Holds no state."""

from collections.abc import Callable, Set
from dataclasses import dataclass

from midstream.routing.watching.argument_rules import ArgumentRules, json_rules
from midstream.routing.watching.call_form import CallForm
from midstream.routing.watching.parser import Markers

JSON_ARGUMENTS = json_rules()

INTERLEAVED_NOTE = (
    "Tool results arrive while you write. After a call, go on with what you can say without its result; "
    "use the result when it is there, and never make one up."
)

CallId = Callable[[str, str, int], str]
"""Makes the id of a call from a unique text, its tool's name and its number in the answer."""


@dataclass(frozen=True)
class Template:
    """What a dialect is recognised by."""

    text: str
    """The chat template."""
    added_tokens: Set[str]
    """The texts of the tokenizer's special and added tokens."""

    def has(self, *texts: str) -> bool:
        return all(text in self.text or text in self.added_tokens for text in texts)


@dataclass(frozen=True)
class Dialect:
    """How one family of models writes calls.

    What is read is `calls`, tolerantly. What a grammar lets a model write is, to the byte: a section
    `opening + before_first_call + CALL (+ between_calls + CALL)* + after_last_call`, with each CALL
    `before_name + NAME + after_name + before_arguments (+ may_precede_arguments) + ARGUMENTS + after_arguments`.
    """

    name: str
    calls: CallForm
    fits: Callable[[Template], bool]
    """Whether a model with this template writes this dialect; the first dialect that fits is taken."""
    before_name: str = '{"name": "'
    before_arguments: str = '", "arguments": '
    may_precede_arguments: str = ""
    """Behind `before_arguments`, if the model likes."""
    after_arguments: str = "}"
    opening: str = ""
    """What a turn made of calls begins with."""
    before_first_call: str = ""
    between_calls: str = ""
    after_last_call: str = ""
    after_name: str = ""
    """A regular expression: what stands behind a name that no grammar knows beforehand."""
    arguments: ArgumentRules = JSON_ARGUMENTS
    is_single: bool = False
    """A turn holds one call at most."""
    marks: tuple[str, ...] = ()
    """What else its calls hold that may be a special token."""
    silent: tuple[str, ...] = ()
    """Frames around text that say nothing to a reader."""
    reasoning: tuple[str, str] | None = None
    """Its own markers around reasoning; None takes the tokenizer's."""
    result_frames: tuple[str, ...] = ()
    """Texts that only the server may write; sampling is kept from those that are single tokens."""
    interleaved_note: str = INTERLEAVED_NOTE
    """What its models are told where results arrive while they write."""
    call_id: CallId | None = None
    """The form of ids that the template asks for; None takes any."""

    @property
    def reads_without_tools(self) -> bool:
        """Its text needs reading even where no tool is enabled."""
        return bool(self.silent or self.reasoning)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text in which a special token is meant to be seen."""
        form = self.calls
        written = (self.opening, self.before_name, self.before_arguments, self.after_arguments)
        around = (self.before_first_call, self.between_calls, self.after_last_call)
        read = (*form.openings, form.begin, form.call_open, form.call_close, form.separator, form.end)
        return (*written, *around, *read, *self.marks, *self.silent, *(self.reasoning or ()), *self.result_frames)

    def markers(self, reasoning: tuple[str, str] | None, *, has_calls: bool, is_reasoning: bool = False) -> Markers:
        """What a turn is read by; `reasoning` are the tokenizer's markers."""
        return Markers(
            self.calls if has_calls else None,
            self.reasoning or reasoning,
            self.silent,
            begins_in_reasoning=is_reasoning,
        )
