"""Owns the grammars that calls have to follow, and their state per turn. Knows nothing of parsing or dispatch.

llguidance compiles a grammar once per set of tools; a turn works on a copy. Only the tokens that it says are forced
are forced: it withholds the last one where the text could still be tokenised otherwise.
"""

import hashlib
import json
import re
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import fill_next_token_bitmask

from midstream.errors import RequestError
from midstream.messages import ChoiceMode, ToolPlan, ToolSpec
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.watching.dialects.dialect import Dialect

MAX_CACHED_GRAMMARS = 64
MAX_CALLS_A_TURN = 16
"""A turn that has to be made of calls ends after this many: a weak model does not know when to stop."""


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
        self._encode = tokenizer.encode_frames

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text only")
        return self._encode(text, at_start=False)


def grammar_text(dialect: Dialect, plan: ToolPlan) -> str:
    """The grammar of one call (`auto`: free text up to the marker first) or of a turn made of calls, in Lark."""
    tools = [tool for tool in plan.tools if plan.choice.name in (None, tool.name)]
    opening = dialect.call_open or ""
    names = "\n    | ".join(
        f"{json.dumps(tool.name + dialect.before_arguments)} arguments_{index}" for index, tool in enumerate(tools)
    )
    rules = [f"arguments_{i}: %json {_arguments_schema(tool, dialect)}" for i, tool in enumerate(tools)]
    rules.append(f"call: {json.dumps(dialect.before_name)} ({names}) {json.dumps(dialect.after_arguments)}")
    if plan.choice.mode is ChoiceMode.AUTO:
        marker = re.escape(opening).replace("/", r"\/")
        rules += ["start: until call tail", rf"until[lazy]: /(.|\n)*{marker}/", r"tail: /(.|\n)*/"]
    else:
        first = json.dumps(dialect.before_first_call + opening)
        more = f"({json.dumps(dialect.between_calls + opening)} call)" + f"{{0,{MAX_CALLS_A_TURN - 1}}}"
        is_one = plan.choice.mode is ChoiceMode.NAMED or not plan.parallel
        last = json.dumps(dialect.after_last_call) if dialect.after_last_call else ""
        rules.append(f"start: {first} call {'' if is_one else more} {last}")
    return "%llguidance {}\n" + "\n".join(rules) + "\n"


def check_tool(tool: ToolSpec, dialect: Dialect, param: str) -> None:
    """Raises RequestError when no grammar can be made of the tool's schema."""
    plan = ToolPlan(dialect.name, (tool,))
    error = str(LLMatcher.validate_grammar(grammar_text(dialect, plan)))
    if error and not error.startswith("WARNING"):
        cause = " ".join(error.split())[:300]
        raise RequestError(f"the parameters of tool {tool.name!r} are no usable JSON Schema: {cause}", param=param)


def _arguments_schema(tool: ToolSpec, dialect: Dialect) -> str:
    options: dict[str, Any] = {
        "whitespace_flexible": False,
        "item_separator": dialect.item_separator,
        "key_separator": dialect.key_separator,
        "lenient": True,
    }
    return json.dumps({"type": "object", **tool.parameters, "x-guidance": options})


class Grammars:
    """Compiled grammars by plan, at most `MAX_CACHED_GRAMMARS`; the one that was used longest ago goes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        wrapper = TokenizerWrapper(_GrammarTokenizer(tokenizer))
        self._tokenizer = LLTokenizer(wrapper, n_vocab=tokenizer.vocab_size, eos_token=list(tokenizer.eos_token_ids))
        self._compiled: OrderedDict[bytes, LLMatcher] = OrderedDict()

    def matcher(self, dialect: Dialect, plan: ToolPlan) -> "GrammarState":
        text = grammar_text(dialect, plan)
        key = hashlib.sha256(text.encode()).digest()
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = LLMatcher(self._tokenizer, text)
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
