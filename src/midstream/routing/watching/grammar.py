"""Owns the grammars that calls have to follow, and their state per turn. Knows nothing of parsing or dispatch.

llguidance compiles a grammar once per set of tools; a turn works on a copy. Only the tokens that it says are forced
are forced: it withholds the last one where the text could still be tokenised otherwise.
"""

import hashlib
import re
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import fill_next_token_bitmask

from midstream.errors import RequestError
from midstream.messages import ChoiceMode, ToolChoice, ToolPlan, ToolSpec
from midstream.modelfile.tokenizer import Tokenizer
from midstream.protocol.references import num_levels
from midstream.routing.watching.dialects.dialect import Dialect
from midstream.routing.watching.grammar_writer import ANY_TEXT, GrammarTooLong, GrammarWriter

MAX_CACHED_GRAMMARS = 64
MAX_CALLS_A_TURN = 16
"""A turn that has to be made of calls ends after this many: a weak model does not know when to stop."""
MAX_LEVELS = 512
"""What a schema and its definitions may be nested, all together: llguidance follows them by recursion, and at more
than twice as many its stack ends, and the process with it."""
MAX_CHARACTERS = 2 << 20
"""Of the grammar of a request's tools."""
GRAMMAR_LIMIT = (
    f"the grammar of a request's tools may have {MAX_CHARACTERS} characters; give fewer tools, or shorter schemas"
)

NO_TOKENS: Mapping[str, int] = MappingProxyType({})


class _GrammarTokenizer:
    """The vocabulary in the form that llguidance's `TokenizerWrapper` asks for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.special_ids)
        special = tokenizer.special_ids
        # A leading 0xFF byte, which no text has, keeps special tokens out of every text rule.
        self.tokens = [
            b"\xff" + tokenizer.token_bytes(token_id, special=True) if token_id in special else text
            for token_id, text in enumerate(tokenizer.all_token_bytes())
        ]
        self._tokenizer = tokenizer
        self._special = re.compile("|".join(map(re.escape, tokenizer.special_tokens)) or r"(?!)")

    def __call__(self, text: str) -> list[int]:
        """The tokens of forced text. A special token in it is spelled out: where one is meant the grammar names it."""
        if isinstance(text, bytes):
            raise TypeError("text only")
        token_ids: list[int] = []
        end = 0
        for found in self._special.finditer(text):
            token_ids += self._tokenizer.encode_frames(text[end : found.start()], at_start=False)
            token_ids += self._tokenizer.encode(found[0], at_start=False)
            end = found.end()
        return token_ids + self._tokenizer.encode_frames(text[end:], at_start=False)


def grammar_text(
    dialect: Dialect,
    plan: ToolPlan,
    special_ids: Mapping[str, int] = NO_TOKENS,
    *,
    opening: str | None = None,
    max_characters: int = sys.maxsize,
) -> str:
    """The grammar of one section of calls, in Lark. `auto`: what comes up to its opening stands before it.

    `opening`: the marker with special tokens that has opened the section, of which the text behind the last one is
    still to come; None: text goes on until one of the dialect's markers of plain text is complete.
    Raises GrammarTooLong.
    """
    writer = GrammarWriter(special_ids, max_characters)
    chosen = plan.choice.names
    tools = [tool for tool in plan.tools if not chosen or tool.name in chosen]
    after_name = writer.rule(f"/{dialect.after_name}/") if dialect.after_name else ""
    option = writer.literal(dialect.may_precede_arguments)
    before_arguments = f"{writer.literal(dialect.before_arguments)} {f'({option})?' if option else ''}"
    named = {
        tool.name: f"{writer.literal(tool.name)} {after_name} {before_arguments} "
        f"{writer.rule(dialect.arguments(writer, tool.parameters), name=f'arguments_{index}')}"
        for index, tool in enumerate(tools)
    }

    def call_of(names: Iterable[str]) -> str:
        name = f"({' | '.join(named[name] for name in names)})"
        return writer.rule(f"{writer.literal(dialect.before_name)} {name} {writer.literal(dialect.after_arguments)}")

    between = writer.literal(dialect.between_calls)
    section = [writer.literal(dialect.before_first_call)]
    if chosen:
        section.append(f" {between} ".join(call_of([name]) for name in chosen))
    else:
        call = call_of(named)
        section.append(call)
        if _has_many(dialect, plan):
            section.append(f"({between} {call}){{0,{MAX_CALLS_A_TURN - 1}}}")
    section.append(writer.literal(dialect.after_last_call))
    if plan.choice.mode is ChoiceMode.AUTO:
        tail = writer.rule(ANY_TEXT)
        openings = plain_openings(dialect, special_ids) if opening is None else (writer.after_specials(opening),)
        until = writer.until(*openings) if any(openings) else ""
        return writer.text(" ".join([until, *section, tail]))
    if plan.is_interleaved:  # the model goes on writing
        section.append(writer.rule(ANY_TEXT))
    reasoning = dialect.reasoning or plan.reasoning_markers
    before = writer.until(reasoning[1]) if plan.is_reasoning and reasoning is not None else ""
    return writer.text(" ".join([before, writer.literal(dialect.opening), *section]))


def plain_openings(dialect: Dialect, special_ids: Mapping[str, int]) -> tuple[str, ...]:
    """The dialect's openings that hold no special token."""
    return tuple(opening for opening in dialect.calls.openings if not any(text in opening for text in special_ids))


def _has_many(dialect: Dialect, plan: ToolPlan) -> bool:
    if dialect.is_single or not plan.parallel:
        return False
    return plan.choice.mode is not ChoiceMode.AUTO or dialect.calls.has_many


def check_tool(tool: ToolSpec, dialect: Dialect, param: str) -> int:
    """The length of the grammar that a tool's schema makes. Raises RequestError when it makes none."""
    what = f"the parameters of tool {tool.name!r}"
    levels = num_levels(tool.parameters)
    if levels > MAX_LEVELS:
        raise RequestError(
            f"{what} and the definitions that they refer to are {levels} levels deep, all together; "
            f"the limit is {MAX_LEVELS}; use fewer definitions",
            param=param,
        )
    plan = ToolPlan(dialect.name, (tool,), ToolChoice(ChoiceMode.REQUIRED))
    try:
        text = grammar_text(dialect, plan, max_characters=MAX_CHARACTERS)
    except GrammarTooLong:
        raise RequestError(f"{what} are too large; {GRAMMAR_LIMIT}", param=param) from None
    error = str(LLMatcher.validate_grammar(text))
    if error and not error.startswith("WARNING"):
        cause = " ".join(error.split())[:300]
        raise RequestError(f"{what} are no usable JSON Schema: {cause}", param=param)
    return len(text)


class Grammars:
    """Compiled grammars by plan, at most `MAX_CACHED_GRAMMARS`; the one that was used longest ago goes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        wrapper = TokenizerWrapper(_GrammarTokenizer(tokenizer))
        self._tokenizer = LLTokenizer(wrapper, n_vocab=tokenizer.vocab_size, eos_token=list(tokenizer.eos_token_ids))
        self._compiled: OrderedDict[bytes, LLMatcher] = OrderedDict()
        self.special_ids = tokenizer.special_tokens
        """The special tokens by text."""

    def matcher(self, dialect: Dialect, plan: ToolPlan, opening: str | None = None) -> "GrammarState":
        """The state at the grammar's beginning; see `grammar_text`."""
        # What the grammar is made of is hashed, not its text: that of a thousand tools takes long to write.
        tools = [(tool.name, tool.parameters) for tool in plan.tools]
        key = hashlib.sha256(
            msgspec.msgpack.encode(
                (dialect.name, plan.choice, plan.parallel, plan.is_interleaved, plan.is_reasoning, opening, tools)
            )
        ).digest()
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = LLMatcher(self._tokenizer, grammar_text(dialect, plan, self.special_ids, opening=opening))
            self._compiled[key] = compiled
            if len(self._compiled) > MAX_CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return GrammarState(compiled).fresh()


class GrammarState:
    """Where one turn stands in its grammar. A state that met a token it does not allow constrains nothing more."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fresh(self) -> "GrammarState":
        """A copy that moves on by itself."""
        return GrammarState(self._matcher.deep_copy())

    @property
    def is_broken(self) -> bool:
        return bool(self._matcher.is_error())

    @property
    def is_over(self) -> bool:
        """Nothing but the turn's end can come."""
        return bool(self._matcher.is_stopped()) and not self.is_broken

    def consume(self, token_ids: list[int]) -> bool:
        return bool(self._matcher.consume_tokens(token_ids))

    def forced_tokens(self) -> list[int]:
        return list(self._matcher.compute_ff_tokens())

    def forced_text(self) -> str:
        """All that must follow; after the forced tokens, what their last one was withheld for."""
        return bytes(self._matcher.compute_ff_bytes()).decode("utf-8", errors="ignore")

    def num_allowed(self, token_ids: list[int]) -> int:
        """How many of `token_ids` may follow, in order. The state stays where it is."""
        return int(self._matcher.validate_tokens(token_ids))

    def fill(self, bitmask: npt.NDArray[np.int32]) -> None:
        """Write the allowed tokens to `bitmask` [ceil(V / 32)] int32."""
        fill_next_token_bitmask(self._matcher, bitmask.reshape(1, -1), 0)
