"""Owns the conversation of `midstream chat`: reads messages, keeps the history. Never draws an answer."""

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from enum import Enum, auto
from typing import Any, Literal, TextIO

from midstream.cli.chat_answer import Event, Failed, Text
from midstream.cli.chat_http import ChatHttp
from midstream.cli.chat_view import JsonView, TextView, View

Message = dict[str, str]

_HELLO = "Ctrl-C stops an answer; /new starts over; /quit or Ctrl-D leaves"


class Outcome(Enum):
    ANSWERED = auto()
    STOPPED = auto()
    FAILED = auto()


def run_chat(
    base_url: str,
    model: str | None = None,
    api_key: str | None = None,
    *,
    system: str | None = None,
    server_tools: Sequence[str] | Literal["all"] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    as_json: bool = False,
    stream_in: TextIO | None = None,
    stream_out: TextIO | None = None,
    stream_err: TextIO | None = None,
    interactive: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Chat with any OpenAI-compatible server; return the exit status: 0, 1 after an error, 130 on Ctrl-C.

    With a terminal as input the conversation goes on until `/quit` or Ctrl-D and returns 0, whatever went
    wrong. Otherwise the whole input is one message, and only the answer's text goes to `stream_out`.

    `model` None takes the first one that the server lists. `tool_choice`: auto, required, none, a tool's
    name, or OpenAI's object. `options` are further fields of the request's body, such as temperature.
    `as_json` writes one JSON object a line for each event of an answer.
    Raises ConfigError where `base_url` is no http address.
    """
    stream_in, out, err = stream_in or sys.stdin, stream_out or sys.stdout, stream_err or sys.stderr
    is_interactive = stream_in.isatty() if interactive is None else interactive
    shares_a_screen = out.isatty() and err.isatty()
    view: View = JsonView(out, err)
    if not as_json:
        view = TextView(out, err, shares_a_screen=shares_a_screen, clock=clock)
    fields = _body_fields(server_tools, tool_choice, options)
    with closing(ChatHttp(base_url, api_key)) as http:
        session = _Session(http, view, model, system, fields)
        if is_interactive:
            _converse(session, view, stream_in, err)
            return 0
        return _answer_once(session, view, stream_in)


def _body_fields(
    server_tools: Sequence[str] | str | None,
    tool_choice: str | Mapping[str, Any] | None,
    options: Mapping[str, Any] | None,
) -> dict[str, Any]:
    fields = dict(options or {})
    if server_tools is not None:
        fields["server_tools"] = server_tools if isinstance(server_tools, str) else list(server_tools)
    if isinstance(tool_choice, str) and tool_choice not in ("auto", "required", "none"):
        tool_choice = {"type": "function", "function": {"name": tool_choice}}
    if tool_choice is not None:
        fields["tool_choice"] = tool_choice
    return fields


class _Session:
    """The history, owned here, and the questions put to the server."""

    def __init__(
        self, http: ChatHttp, view: View, model: str | None, system: str | None, fields: dict[str, Any]
    ) -> None:
        self._http = http
        self._view = view
        self._model = model
        self._fields = fields
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages: list[Message] = []

    def clear(self) -> None:
        self.messages.clear()

    def ask(self, text: str) -> Outcome:
        """Send the conversation with `text` added and show the answer.

        A stopped answer stays in the history as far as it came; a question that failed leaves no trace.
        """
        question: Message = {"role": "user", "content": text}
        said: list[str] = []
        outcome = Outcome.ANSWERED
        try:
            outcome = self._stream(question, said)
        except KeyboardInterrupt:
            outcome = Outcome.STOPPED
            self._view.note("(stopped)")
        self._view.end_answer()
        if outcome is Outcome.ANSWERED or (outcome is Outcome.STOPPED and said):
            self.messages += [question, {"role": "assistant", "content": "".join(said)}]
        return outcome

    def _stream(self, question: Message, said: list[str]) -> Outcome:
        if self._model is None:
            model = self._http.first_model()
            if isinstance(model, Failed):
                self._view.show(model)
                return Outcome.FAILED
            self._model = model
        outcome = Outcome.ANSWERED
        with closing(self._http.answer(self._body(self._model, question))) as events:
            for event in events:
                outcome = Outcome.FAILED if isinstance(event, Failed) else outcome
                self._take(event, said)
        return outcome

    def _body(self, model: str, question: Message) -> dict[str, Any]:
        messages = [*self._system, *self.messages, question]
        usage = {"stream_options": {"include_usage": True}}
        return {"model": model, "messages": messages, "stream": True} | usage | self._fields

    def _take(self, event: Event, said: list[str]) -> None:
        if isinstance(event, Text):
            said.append(event.text)
        self._view.show(event)


def _answer_once(session: _Session, view: View, stream_in: TextIO) -> int:
    text = stream_in.read().strip()
    if not text:
        view.note("nothing to ask: the input is empty")
        return 1
    return {Outcome.ANSWERED: 0, Outcome.FAILED: 1, Outcome.STOPPED: 130}[session.ask(text)]


def _converse(session: _Session, view: View, stream_in: TextIO, err: TextIO) -> None:
    view.note(_HELLO)
    while True:
        try:
            text = _read_line(stream_in, err)
        except KeyboardInterrupt:
            err.write("\n")
            view.note(_HELLO)
            continue
        if text is None or text == "/quit":
            return
        if text == "/new":
            session.clear()
            view.note("(a new conversation)")
        elif re.fullmatch(r"/\w+", text):
            view.note(f"there is no {text}; {_HELLO}")
        elif text:
            session.ask(text)


def _read_line(stream_in: TextIO, err: TextIO) -> str | None:
    """Return the next line, stripped; None at the end of the input."""
    if stream_in is sys.stdin and stream_in.isatty():
        with suppress(ImportError):  # a Python built without it still reads lines
            import readline  # noqa: F401  importing it gives input() its line editing and history
        try:
            return input("> ").strip()
        except EOFError:
            err.write("\n")
            return None
    err.write("> ")
    err.flush()
    line = stream_in.readline()
    return line.strip() if line else None
