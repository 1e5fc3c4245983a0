"""Owns the way of results into a running sequence: rendered once, as the tokens that come next. Runs nothing."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from midstream.errors import RequestError
from midstream.modelfile.chat_template import ChatTemplate
from midstream.modelfile.continuation import continuation_ids
from midstream.modelfile.sentinel import NONCHARACTERS
from midstream.modelfile.tokenizer import Tokenizer
from midstream.routing.dispatching.status import CallResult

# Rendering needs one of them that no message holds, and a result is not to take them all.
_WITHOUT_NONCHARACTERS = dict.fromkeys(map(ord, NONCHARACTERS), "\ufffd")


@dataclass(frozen=True)
class ResultFrame:
    """What a chat template writes around a result, as far as the engine has to know."""

    banned_token_ids: tuple[int, ...] = ()
    """Special tokens that only the server may write."""
    end_token_id: int | None = None
    """What ends a turn of the model's; None where the template writes nothing of the kind."""


NO_FRAME = ResultFrame()


class Injector:
    """Renders results by the difference that they make to a conversation that ends in their calls."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, *, max_result_tokens: int) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._max_result_tokens = max_result_tokens
        longest = max(map(len, tokenizer.all_token_bytes()))
        self._max_result_chars = (max_result_tokens + 1) * longest

    def frame(self, shown_token_ids: Set[int]) -> ResultFrame:
        """How the template frames a result; `shown_token_ids` are the model's own markers, never banned."""
        tokenizer = self._tokenizer
        ends = frozenset(tokenizer.eos_token_ids)
        try:
            frame = frozenset(self.render([CallResult("call", "tool", {}, "")], None))
            turn = [{"role": "user", "content": "."}, {"role": "assistant", "content": "."}]
            written = self._template.encode_chat(tokenizer, turn, add_generation_prompt=False)
        except RequestError:
            return NO_FRAME  # a template that wants more than a tool that does not exist
        banned = (tokenizer.special_ids & frame) - ends - shown_token_ids
        last = [token_id for token_id in written if token_id in ends][-1:]
        return ResultFrame(tuple(sorted(banned)), last[0] if last else None)

    def render(
        self,
        results: Sequence[CallResult],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        is_models_turn: bool = True,
    ) -> list[int]:
        """The tokens that follow the turn which made the calls, up to where the model goes on.

        Where it is not the model's turn (the client has calls to run as well), up to the end of the results' turn.
        """
        before = [{"role": "user", "content": ""}, _calls(results)]
        after = [*before, *(self._message(result) for result in results)]
        token_ids = continuation_ids(
            self._template, self._tokenizer, before, after, tools, add_generation_prompt=is_models_turn
        )
        if token_ids is None:
            raise RequestError("the chat template renders a turn with calls differently once results follow it")
        return token_ids if is_models_turn else self._up_to_end(token_ids)

    def _up_to_end(self, token_ids: list[int]) -> list[int]:
        """Without what a template writes after a turn's end token: whoever continues the turn writes it."""
        ends = [i for i, token_id in enumerate(token_ids) if token_id in self._tokenizer.eos_token_ids]
        return token_ids[: ends[-1] + 1] if ends else token_ids

    def _message(self, result: CallResult) -> dict[str, Any]:
        return {
            "role": "tool",
            "tool_call_id": result.call_id,
            "name": result.name,
            "content": self._cut(result.text).translate(_WITHOUT_NONCHARACTERS),
        }

    def _cut(self, text: str) -> str:
        # More characters than this are surely too many tokens: megabytes are not tokenised to be thrown away.
        token_ids = self._tokenizer.encode(text[: self._max_result_chars])
        if len(token_ids) <= self._max_result_tokens:
            return text
        kept = self._tokenizer.decode(token_ids[: self._max_result_tokens]).rstrip("�")
        return f"{kept}… [cut: the first {len(kept)} of {len(text)} characters]"


def _calls(results: Sequence[CallResult]) -> dict[str, Any]:
    calls = [
        {
            "id": result.call_id,
            "type": "function",
            "function": {"name": result.name, "arguments": result.arguments},
        }
        for result in results
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
