"""Owns the tokens that a conversation gets when it goes on. Never renders again those that it has."""

from collections.abc import Mapping, Sequence
from typing import Any

from midstream.modelfile.chat_template import ChatTemplate
from midstream.modelfile.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]


def continuation_ids(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    before: Messages,
    after: Messages,
    tools: Sequence[Mapping[str, Any]] | None,
    /,
    *,
    add_generation_prompt: bool = True,
    **kwargs: Any,
) -> list[int] | None:
    """The tokens that follow an assistant's turn whose own tokens, its end token included, are kept.

    `before` ends with that turn and `after` goes on from it. None where the template renders the beginning of a
    longer conversation differently.
    """
    added = template.extend(before, after, add_generation_prompt, tools=tools, **kwargs)
    if added is None:
        return None
    head = template.render(before, tools, add_generation_prompt=False, **kwargs).text
    # What the template writes after the turn's end token (a line end, say) is not among the kept tokens.
    ends = [tokenizer.token_bytes(token_id, special=True).decode() for token_id in tokenizer.eos_token_ids]
    last_end = max((head.rfind(end) + len(end) for end in ends if end in head), default=len(head))
    return tokenizer.encode_escaped(head[last_end:] + added.text, added.sentinel, at_start=False)
