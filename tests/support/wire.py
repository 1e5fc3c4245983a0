"""Owns the strict reading of OpenAI streams: what a strict client trips over is an AssertionError.

Never looks at the server's code: it knows bytes only. Each complaint names its code and the chunk:

    I1  `role` only in a choice's first chunk          I11 exactly one `finish_reason` for each choice
    I2  a call's first delta is complete               I12 the finish reason that fits what was sent
    I3  ids unique in the response                     I13 usage comes last; `usage: null` before
    I4  `index` is the call's number, dense from 0     I14 one `[DONE]`, last, after an error too
    I5  an `index` is never shared by two calls        I15 no usage unless asked for
    I6  at most one entry for an index in a chunk      I16 n > 1: all choices come, choice 0 first
    I7  later deltas: index and arguments; no nulls    I17 no keep-alive comment (before 15 s of silence)
    I8  fragments make exactly one JSON object         I18 fragments of two calls never interleave
    I9  no empty `tool_calls` deltas                   I20 a finish reason or an error object always comes
    I10 `id`, `created`, `model` stay the same         FRAME, SHAPE, DELTA, EVENT: what has no number

Bytes cannot show whether the first chunk waited for the first token (half of I1), nor how long the silence
before a comment was (half of I17: any comment fails unless `allow_comments`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.wire_calls import Call, CallReader
from tests.support.wire_frames import (
    check_envelope,
    check_error,
    check_event,
    check_finish_reason,
    check_usage,
    fail,
    read_payloads,
)

Chunk = dict[str, Any]

_DELTA_KEYS = {"role", "content", "reasoning", "reasoning_content", "refusal", "tool_calls"}
_CHOICE_KEYS = {"index", "delta", "finish_reason", "logprobs", "stop_reason", "token_ids"}


@dataclass
class Choice:
    """What a client has put together from one choice's deltas."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class Transcript:
    """A whole checked stream. The properties are choice 0, for the common case of one."""

    choices: list[Choice]
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(chunk number, `event.data`) in the order of the wire; numbers index `chunks`."""
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def content(self) -> str:
        return self.choices[0].content

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> list[Call]:
        return self.choices[0].tool_calls

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason


def check_chat_stream(
    raw: bytes,
    *,
    include_usage: bool = False,
    n: int = 1,
    tool_choice: str | Mapping[str, Any] | None = None,
    expect_done: bool = True,
    allow_comments: bool = False,
) -> Transcript:
    """Return what a `/v1/chat/completions` stream said, or raise AssertionError at its first fault.

    `expect_done=False` is for a stream that the client left: what came must be right, not whole.
    """
    reader = _ChatReader(n, include_usage, tool_choice)
    return _check(reader, raw, expect_done, allow_comments)


def check_completion_stream(
    raw: bytes,
    *,
    include_usage: bool = False,
    n: int = 1,
    expect_done: bool = True,
    allow_comments: bool = False,
) -> Transcript:
    """As `check_chat_stream`, for `/v1/completions`: texts without roles, calls and events."""
    return _check(_Reader(n, include_usage), raw, expect_done, allow_comments)


def _check(reader: "_Reader", raw: bytes, expect_done: bool, allow_comments: bool) -> Transcript:
    payloads = read_payloads(raw, whole=expect_done, allow_comments=allow_comments)
    for number, chunk in enumerate(payloads):
        reader.feed(number, chunk)
    if expect_done:
        reader.finish()
    return reader.transcript


class _Reader:
    """What both kinds of stream share; by itself it reads a text-completion stream."""

    object = "text_completion"
    content_key = "text"
    choice_keys = frozenset({"index", "text", "finish_reason", "logprobs", "stop_reason", "token_ids"})

    def __init__(self, n: int, include_usage: bool) -> None:
        self.transcript = Transcript([Choice() for _ in range(n)])
        self._include_usage = include_usage
        self._begun: set[int] = set()

    def feed(self, number: int, chunk: Chunk) -> None:
        seen = self.transcript
        if seen.error is not None:
            fail("I14", number, "a chunk after the error object; only [DONE] may follow it")
        if seen.usage is not None:
            fail("I13", number, "a chunk after the usage chunk")
        seen.chunks.append(chunk)
        if "error" in chunk:
            seen.error = check_error(number, chunk)
            return
        check_envelope(number, chunk, self.object, seen.chunks[0])
        seen.usage = check_usage(number, chunk, asked=self._include_usage)
        if not chunk["choices"]:
            self._feed_bare(number, chunk)
        elif "event" in chunk:
            fail("EVENT", number, "an event shares its chunk with choices")
        for choice in chunk["choices"]:
            self._feed_choice(number, choice)

    def finish(self) -> None:
        """Check what only the end can show."""
        seen, last = self.transcript, len(self.transcript.chunks) - 1
        if seen.error is not None:
            return
        for index, choice in enumerate(seen.choices):
            if index not in self._begun:
                fail("I20" if len(seen.choices) == 1 else "I16", last, f"nothing came for choice {index}")
            if choice.finish_reason is None:
                fail("I20", last, f"choice {index} has neither a finish_reason nor an error object")
        if self._include_usage and seen.usage is None:
            fail("I13", last, "usage was asked for and the last chunk has none")

    def _feed_bare(self, number: int, chunk: Chunk) -> None:
        if self.transcript.usage is None:
            fail("SHAPE", number, "neither choices nor usage")

    def _feed_choice(self, number: int, choice: Chunk) -> None:
        index = choice.get("index")
        if type(index) is not int or not 0 <= index < len(self.transcript.choices):
            fail("I16", number, f"choice index {index!r}; choices are 0 to {len(self.transcript.choices) - 1}")
        if not self._begun and index != 0:
            fail("I16", number, f"the first chunk is of choice {index}, not of choice 0")
        if unknown := set(choice) - self.choice_keys:
            fail("SHAPE", number, f"unknown keys in a choice: {sorted(unknown)}")
        seen = self.transcript.choices[index]
        if seen.finish_reason is not None:
            fail("I11", number, f"choice {index} goes on after its finish_reason")
        self._feed_body(number, index, choice)
        self._begun.add(index)
        seen.finish_reason = check_finish_reason(number, choice)

    def _feed_body(self, number: int, index: int, choice: Chunk) -> None:
        text = choice.get("text")
        if type(text) is not str:
            fail("SHAPE", number, f"`text` must be a string, not {text!r}")
        self.transcript.choices[index].content += text


class _ChatReader(_Reader):
    object = "chat.completion.chunk"
    choice_keys = frozenset(_CHOICE_KEYS)

    def __init__(self, n: int, include_usage: bool, tool_choice: str | Mapping[str, Any] | None) -> None:
        super().__init__(n, include_usage)
        ids: set[str] = set()
        self._calls = [CallReader(ids) for _ in range(n)]
        self._tool_choice = tool_choice or "auto"

    def finish(self) -> None:
        super().finish()
        for index, choice in enumerate(self.transcript.choices):
            self._finish_choice(index, choice)

    def _finish_choice(self, index: int, choice: Choice) -> None:
        """Judge a choice's calls and its finish reason together."""
        last, reason = len(self.transcript.chunks) - 1, choice.finish_reason
        failed_ids = {call["id"] for call in self._event_calls() if call.get("error") is not None}
        broken = self._calls[index].check_whole(last, failed_ids, may_be_cut=reason != "tool_calls")
        named = isinstance(self._tool_choice, Mapping)
        if choice.tool_calls and self._tool_choice == "none":
            fail("I12", last, f"choice {index} has calls under tool_choice none")
        if reason == "tool_calls" and not choice.tool_calls:
            fail("I12", last, f"choice {index} ends tool_calls without a call")
        if reason == "tool_calls" and named:
            fail("I12", last, f"choice {index} ends tool_calls; a named tool_choice ends stop")
        if reason == "stop" and choice.tool_calls and not broken and not named:
            fail(
                "I12",
                last,
                f"choice {index} has whole calls and ends stop; under auto and required: tool_calls",
            )

    def _event_calls(self) -> list[dict[str, Any]]:
        return [data["call"] for _, data in self.transcript.events if "call" in data]

    def _feed_bare(self, number: int, chunk: Chunk) -> None:
        if "event" in chunk:
            self.transcript.events.append((number, check_event(number, chunk["event"])))
        else:
            super()._feed_bare(number, chunk)

    def _feed_body(self, number: int, index: int, choice: Chunk) -> None:
        delta = choice.get("delta")
        if type(delta) is not dict:
            fail("SHAPE", number, f"`delta` must be an object, not {delta!r}")
        if unknown := set(delta) - _DELTA_KEYS:
            fail("DELTA", number, f"unknown keys in a delta: {sorted(unknown)}")
        if nulls := [key for key, value in delta.items() if value is None]:
            fail("I7", number, f"explicit null in a delta: {nulls}")
        is_first = index not in self._begun
        if is_first != ("role" in delta) or (is_first and delta["role"] != "assistant"):
            fail("I1", number, f"role {delta.get('role')!r} in the {'first' if is_first else 'later'} chunk")
        self._feed_texts(number, index, delta)
        if "tool_calls" in delta:
            self.transcript.choices[index].tool_calls = self._calls[index].feed(number, delta["tool_calls"])

    def _feed_texts(self, number: int, index: int, delta: Chunk) -> None:
        for key in ("content", "reasoning", "reasoning_content", "refusal"):
            if key in delta and (type(delta[key]) is not str or not delta[key]):
                fail("DELTA", number, f"`{key}` is {delta[key]!r}; an empty key is left out")
        if delta.get("reasoning") != delta.get("reasoning_content"):
            fail("DELTA", number, "`reasoning` and `reasoning_content` differ")
        self.transcript.choices[index].content += delta.get("content", "")
        self.transcript.choices[index].reasoning += delta.get("reasoning", "")
