"""Owns how an answer looks: text on stdout, tool lines and notes on stderr. Never reads anything."""

import re
from collections.abc import Callable
from typing import Protocol, TextIO

import msgspec
from rich.console import Console
from rich.text import Text as Line

from midstream.cli.chat_answer import Event, Failed, Finished, Reasoning, Status, Text, ToolState

_STYLES = {
    "routed": ("◌", "dim"),
    "running": ("▸", "cyan"),
    "progress": ("…", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "timed_out": ("✗", "red"),
    "cancelled": ("✗", "yellow"),
    "abandoned": ("✗", "dim"),
    "requested": ("▸", "cyan"),
}
# A model's or a tool's text must not move the cursor, retitle the window or answer for the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class View(Protocol):
    def show(self, event: Event) -> None: ...

    def note(self, message: str) -> None:
        """Say something that is not part of the answer."""

    def end_answer(self) -> None: ...


class JsonView:
    """One JSON object a line on stdout for each event; notes on stderr."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err

    def show(self, event: Event) -> None:
        self._out.write(msgspec.json.encode(event).decode() + "\n")
        self._out.flush()

    def note(self, message: str) -> None:
        self._err.write(message + "\n")
        self._err.flush()

    def end_answer(self) -> None:
        pass


class TextView:
    """The answer's text as it comes, and a line for each step of a tool call.

    `shares_a_screen`: both streams end up on one terminal, so a line waits for the text's own line to end.
    """

    def __init__(self, out: TextIO, err: TextIO, *, shares_a_screen: bool, clock: Callable[[], float]) -> None:
        self._out = out
        self._console = Console(file=err, highlight=False, markup=False, emoji=False)
        self._shares_a_screen = shares_a_screen
        self._is_terminal = out.isatty()
        self._clock = clock
        self._began_s: dict[str, float] = {}
        self._is_mid_line = False
        self._in_reasoning = False

    def show(self, event: Event) -> None:
        if not isinstance(event, Reasoning):
            self._in_reasoning = False
        match event:
            case Text(text=text):
                self._write(text)
            case ToolState():
                self._show_tool(event)
            case Reasoning():
                self._show_reasoning()
            case Status(description=description):
                self._line(description, "dim")
            case Failed(message=message):
                self._line(f"error: {message}", "red")
            case Finished(finish_reason="length"):
                self._line("(the answer was cut: it reached its token limit)", "yellow")
            case Finished():
                pass

    def note(self, message: str) -> None:
        self._line(message, "dim")

    def end_answer(self) -> None:
        if self._is_mid_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        if self._is_terminal:
            text = _CONTROL.sub("", text)
        self._out.write(text)
        self._out.flush()
        self._is_mid_line = not text.endswith("\n") if text else self._is_mid_line

    def _show_reasoning(self) -> None:
        if not self._in_reasoning:
            self._in_reasoning = True
            self._line("(thinking)", "dim")

    def _show_tool(self, tool: ToolState) -> None:
        if tool.state not in _STYLES:
            return
        now_s = self._clock()
        began_s = self._began_s.setdefault(tool.call_id, now_s)
        mark, style = _STYLES[tool.state]
        if tool.state in ("routed", "abandoned", "cancelled"):
            said = f"{tool.name}  {tool.state}"
        elif tool.state == "running":
            said = f"{tool.name}({tool.arguments or ''})  running"
        elif tool.state == "requested":
            said = f"{tool.name}({tool.arguments or ''})  left to the client: nothing runs it here"
        elif tool.state == "progress":
            said = f"{tool.name}  {tool.description}"
        else:
            outcome = tool.result if tool.state == "done" else tool.error or tool.state.replace("_", " ")
            said = f"{tool.name}  {now_s - began_s:.2f} s  {outcome or 'done'}"
        self._line(f"{mark} {said}", style)

    def _line(self, text: str, style: str) -> None:
        if self._shares_a_screen and self._is_mid_line:
            self._write("\n")
        line = Line(_CONTROL.sub("", re.sub(r"[\r\n\t]+", " ", text)), style=style)
        is_narrow = self._console.is_terminal
        self._console.print(line, soft_wrap=not is_narrow, no_wrap=is_narrow, overflow="ellipsis")
