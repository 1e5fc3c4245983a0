"""Owns reading a docstring in Google, numpy or reST style. Never looks at the signature."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

_GOOGLE_HEADER = re.compile(r"(Args|Arguments|Parameters|Params):\s*$")
_GOOGLE_ENTRY = re.compile(r"(?P<names>\w+)\s*(\(.*?\))?\s*:\s*(?P<text>.*)")
_NUMPY_ENTRY = re.compile(r"(?P<names>\w+(\s*,\s*\w+)*)\s*(:.*)?$(?P<text>)")
_REST_ENTRY = re.compile(r":param\s+([^:]*\s)?(?P<names>\w+)\s*:\s*(?P<text>.*)")
_UNDERLINE = re.compile(r"-{3,}\s*$")


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph of the docstring, as one line, and the text for each parameter described in it."""
    lines = (inspect.getdoc(function) or "").splitlines()
    parameters = _entries(_google_section(lines), _GOOGLE_ENTRY)
    parameters |= _entries(_numpy_section(lines), _NUMPY_ENTRY)
    parameters |= _entries(lines, _REST_ENTRY)
    return _summary(lines), parameters


def _summary(lines: list[str]) -> str:
    paragraph: list[str] = []
    for line in lines:
        if not line.strip() or _GOOGLE_HEADER.match(line) or line.startswith(":"):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph)


def _google_section(lines: list[str]) -> list[str]:
    """The lines indented below `Args:`, without that indent."""
    start = next((i for i, line in enumerate(lines) if _GOOGLE_HEADER.match(line)), len(lines))
    section: list[str] = []
    for line in lines[start + 1 :]:
        if line and not line[0].isspace():
            break
        section.append(line)
    return textwrap.dedent("\n".join(section)).splitlines()


def _numpy_section(lines: list[str]) -> list[str]:
    """The lines between `Parameters` with its underline and the next underlined header."""
    headers = [i for i in range(len(lines) - 1) if _UNDERLINE.match(lines[i + 1])]
    for header, end in zip(headers, [*headers, len(lines)][1:], strict=True):
        if lines[header].strip() == "Parameters":
            return lines[header + 2 : end]
    return []


def _entries(lines: Iterable[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Entries begin where `pattern` matches an unindented line; indented lines go on with the last one."""
    found: dict[str, list[str]] = {}
    open_names: list[str] = []
    for line in lines:
        if match := pattern.match(line):
            open_names = re.split(r"\s*,\s*", match["names"])
            found |= {name: [match["text"].strip()] for name in open_names}
        elif line[:1].isspace():
            for name in open_names:
                found[name].append(line.strip())
        elif line:
            open_names = []
    texts = {name: " ".join(filter(None, pieces)) for name, pieces in found.items()}
    return {name: text for name, text in texts.items() if text}
