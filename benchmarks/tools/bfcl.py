"""Owns the BFCL cases: their questions, tools and accepted answers. Asks no model.

The data comes inside the package `bfcl-eval`, whose wheel is unpacked and never installed.
Source: Berkeley Function-Calling Leaderboard, Apache-2.0.
"""

import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream.messages import RunsOn, ToolAnnotations, ToolSpec
from midstream.protocol.btif import tool_id

VERSION = "2026.3.23"
CATEGORIES = {"simple": "simple_python", "multiple": "multiple", "parallel": "parallel", "live_simple": "live_simple"}
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "String": "string"}
_READ_ONLY = ToolAnnotations(read_only=True)

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    id: str
    messages: list[dict[str, Any]]
    tools: tuple[ToolSpec, ...]
    accepted: list[dict[str, dict[str, list[Any]]]]
    """For each call: its tool, and the values that each argument may have; "" among them: it may be left out."""

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in self.tools
        ]

    def is_right(self, calls: list[Call]) -> bool:
        """Whether exactly the wanted calls were made, in any order, with accepted values."""
        left = list(calls)
        for wanted in self.accepted:
            found = next((call for call in left if _fits(call, wanted)), None)
            if found is None:
                return False
            left.remove(found)
        return not left


def load(category: str, cache: Path) -> list[Case]:
    """The cases of one category. Downloads the wheel the first time."""
    folder = _unpacked(cache) / "bfcl_eval" / "data"
    stem = f"BFCL_v4_{CATEGORIES[category]}.json"
    answers = {line["id"]: line["ground_truth"] for line in _lines(folder / "possible_answer" / stem)}
    return [
        Case(
            line["id"],
            line["question"][0],
            tuple(_spec(function) for function in line["function"]),
            answers[line["id"]],
        )
        for line in _lines(folder / stem)
    ]


def _unpacked(cache: Path) -> Path:
    folder = cache / f"bfcl-eval-{VERSION}"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache)]
        subprocess.run([*command, f"bfcl-eval=={VERSION}"], check=True, stdout=subprocess.DEVNULL)
        [wheel] = cache.glob(f"bfcl_eval-{VERSION}-*.whl")
        partial = folder.with_suffix(".partial")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial, [name for name in archive.namelist() if name.startswith("bfcl_eval/data/")])
        partial.rename(folder)
    return folder


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def _spec(function: Mapping[str, Any]) -> ToolSpec:
    parameters = {**_schema(function["parameters"]), "additionalProperties": False}
    name = function["name"]
    return ToolSpec(name, tool_id(name), function["description"], parameters, _READ_ONLY, RunsOn.SERVER)


def _schema(value: Any) -> Any:
    """BFCL's type names, which are Python's, as JSON Schema's."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _schema(item) for key, item in value.items() if key not in ("default", "optional")}
    kind = made.get("type")
    if isinstance(kind, str):
        made["type"] = _TYPES.get(kind, kind)
        if kind == "any":
            del made["type"]
    return made


def _fits(call: Call, wanted: dict[str, dict[str, list[Any]]]) -> bool:
    [(name, accepted)] = wanted.items()
    made_name, arguments = call
    if made_name != name or not arguments.keys() <= accepted.keys():
        return False
    return all(
        _is_among(arguments[key], values) if key in arguments else "" in values for key, values in accepted.items()
    )


def _is_among(value: Any, accepted: list[Any]) -> bool:
    return any(_same(value, each) for each in accepted)


def _same(value: Any, accepted: Any) -> bool:
    if isinstance(value, str) and isinstance(accepted, str):
        return _plain(value) == _plain(accepted)
    if isinstance(value, list) and isinstance(accepted, list):
        return len(value) == len(accepted) and all(_same(a, b) for a, b in zip(value, accepted, strict=True))
    if isinstance(value, dict) and isinstance(accepted, dict):
        # Inside an object the answers list what each member may be, as they do outside.
        return all(
            _is_among(value[key], each if isinstance(each, list) else [each]) if key in value else "" in each
            for key, each in accepted.items()
        ) and not (value.keys() - accepted.keys())
    if isinstance(value, bool) or isinstance(accepted, bool):
        return value is accepted
    return bool(value == accepted)


def _plain(text: str) -> str:
    """As BFCL compares texts: without spaces, punctuation and case."""
    return "".join(character for character in text.lower() if character not in " ,./-_*^'\"")
