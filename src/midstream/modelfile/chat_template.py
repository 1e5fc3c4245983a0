"""Owns turning messages and tools into a prompt. Never lets a user's text become a frame.

Which template: the operator's file, else ours for the model's family, else the model's own.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from midstream.errors import ModelFileError, RequestError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.resolve import ModelFiles
from midstream.modelfile.sandbox import make_environment
from midstream.modelfile.sentinel import Marker, choose_sentinel
from midstream.modelfile.template_source import TemplateSource, pick_template
from midstream.modelfile.tokenizer import Tokenizer

MAX_OUTPUT_CHARS = 16 << 20
RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"))
# What a template's own mistakes, or input that it did not expect, can raise inside the sandbox.
TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    """A prompt in which `sentinel` breaks every added token that did not come from the template itself."""

    text: str
    sentinel: str


class ChatTemplate:
    """A compiled template for one tokenizer's special tokens."""

    def __init__(
        self, source: TemplateSource, tokenizer: Tokenizer, now: Callable[[], datetime] = datetime.now
    ) -> None:
        """Compile `source`. Raises ModelFileError with the line of a syntax error."""
        self.origin = source.origin
        self.source_text = source.text + (source.tools_text or "")
        """What it is compiled from, the variant for tools included."""
        environment = make_environment(now)
        try:
            self._template = environment.from_string(source.text)
            self._tools_template = environment.from_string(source.tools_text or source.text)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(f"chat template {source.origin}, line {error.lineno}: {error.message}") from error
        self._marker = Marker(tokenizer.added_tokens)
        self._special = {"bos_token": tokenizer.bos_token_text, "eos_token": tokenizer.eos_token_text}

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        tokenizer: Tokenizer,
        gguf: GgufFile | None = None,
        operator_path: Path | None = None,
    ) -> "ChatTemplate | None":
        """Pick and compile a model's template; None for a model that has none (it can complete, not chat)."""
        source = pick_template(files, gguf, operator_path)
        return None if source is None else cls(source, tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> Rendered:
        """Render a conversation. Raises RequestError with the template's own message.

        `content` may be null or a list of text parts; `arguments` of a call may be JSON text or an object.
        """
        values = _values(messages, tools, kwargs)
        sentinel = choose_sentinel(values)
        return Rendered(self._render(values, sentinel, add_generation_prompt), sentinel)

    def extend(
        self,
        messages_before: Sequence[Message],
        messages_after: Sequence[Message],
        /,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Rendered | None:
        """Return what `messages_after` renders beyond `messages_before`.

        None when the first is no prefix of the second (a template that strips reasoning, say).
        """
        before = _values(messages_before, tools, kwargs)
        after = _values(messages_after, tools, kwargs)
        sentinel = choose_sentinel([before, after])
        head = self._render(before, sentinel, add_generation_prompt=False)
        whole = self._render(after, sentinel, add_generation_prompt)
        return Rendered(whole[len(head) :], sentinel) if whole.startswith(head) else None

    def encode_chat(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Render and encode, with exactly one BOS where the model wants one."""
        rendered = self.render(messages, tools, add_generation_prompt, **kwargs)
        return tokenizer.with_bos(tokenizer.encode_escaped(rendered.text, rendered.sentinel))

    def _render(self, values: dict[str, Any], sentinel: str, add_generation_prompt: bool) -> str:
        marked = self._marker.mark(values, sentinel)
        template = self._tools_template if values["tools"] else self._template
        try:
            return _bounded(template.generate(**marked, **self._special, add_generation_prompt=add_generation_prompt))
        except TEMPLATE_FAULTS as error:
            message = getattr(error, "message", None) or str(error)
            raise RequestError(f"the chat template refused the messages: {message.replace(sentinel, '')}") from error


def _bounded(chunks: Iterable[str]) -> str:
    parts: list[str] = []
    num_chars = 0
    for chunk in chunks:
        num_chars += len(chunk)
        if num_chars > MAX_OUTPUT_CHARS:
            raise RequestError(f"the prompt is longer than {MAX_OUTPUT_CHARS} characters; shorten the messages")
        parts.append(chunk)
    return "".join(parts)


def _values(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    taken = sorted(RESERVED & kwargs.keys())
    if taken:
        raise RequestError(f"chat_template_kwargs may not set {', '.join(taken)}; they come from the request itself")
    return {
        **kwargs,
        "messages": [_normalised(message) for message in messages],
        "tools": [dict(tool) for tool in tools] if tools else None,
        "documents": None,
    }


def _normalised(message: Message) -> dict[str, Any]:
    plain = {**message, "content": _text_content(message.get("content"))}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_normalised_call(call) for call in plain["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _text_content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"content is a {type(content).__name__}; text, null or a list of text parts is needed")
    return "".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    text = part.get("text") if isinstance(part, dict) and kind in ("text", "input_text", "output_text") else None
    if not isinstance(text, str):
        raise RequestError(f"content has a part of type {kind!r}; this model takes text parts only", param="messages")
    return text


def _normalised_call(call: Any) -> Any:
    """Give the template an object for arguments that came as JSON text."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = call["function"]
    if not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
