"""Owns the rules of one choice's `tool_calls` deltas. Never judges the finish reason."""

import json
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from tests.support.wire_frames import fail


class Call(NamedTuple):
    id: str | None
    """None where a layer below the wire has no ids yet."""
    name: str
    arguments_text: str


class CallReader:
    """Puts one choice's calls together. `ids` is shared by the choices of a response."""

    def __init__(self, ids: set[str]) -> None:
        self._ids = ids
        self._calls: list[Call] = []

    def feed(self, number: int, entries: Any) -> list[Call]:
        """Return all calls so far."""
        if type(entries) is not list or not entries or any(type(entry) is not dict for entry in entries):
            fail("I9", number, f"an empty or misshapen tool_calls delta: {entries!r}")
        indexes = [entry.get("index") for entry in entries]
        if len(set(indexes)) < len(indexes):
            fail("I6", number, f"two entries with one index: {indexes}")
        for entry in entries:
            self._feed_entry(number, entry)
        return list(self._calls)

    def check_whole(self, number: int, failed_ids: AbstractSet[str], *, may_be_cut: bool) -> bool:
        """Check that each call's fragments make one JSON object; return whether a call is broken off.

        Only the last call may be broken off, where generation was cut; one in `failed_ids` may be wrong.
        """
        any_broken = False
        for position, call in enumerate(self._calls):
            fault = _fault(call.arguments_text)
            if fault is None:
                continue
            any_broken = True
            is_cut = may_be_cut and position == len(self._calls) - 1 and fault == "unfinished"
            if not is_cut and call.id not in failed_ids:
                fail("I8", number, f"call {position}: {fault}: {call.arguments_text[-80:]!r}")
        return any_broken

    def _feed_entry(self, number: int, entry: dict[str, Any]) -> None:
        index = entry.get("index")
        if type(index) is not int or not 0 <= index <= len(self._calls):
            fail("I4", number, f"index {index!r}; the next call is {len(self._calls)}")
        if index == len(self._calls):
            self._open(number, entry)
        else:
            self._extend(number, index, entry)

    def _open(self, number: int, entry: dict[str, Any]) -> None:
        function = entry.get("function")
        if type(function) is not dict or set(entry) != {"index", "id", "type", "function"}:
            fail("I2", number, f"a first delta has index, id, type and function, not {entry!r}")
        if type(entry["id"]) is not str or not entry["id"] or entry["type"] != "function":
            fail("I2", number, f"id {entry['id']!r}, type {entry['type']!r}")
        if set(function) != {"name", "arguments"} or not function["name"] or type(function["name"]) is not str:
            fail("I2", number, f"a first delta's function has its name and arguments, not {function!r}")
        if type(function["arguments"]) is not str:
            fail("I2", number, f"arguments {function['arguments']!r} are no string")
        if entry["id"] in self._ids:
            fail("I3", number, f"id {entry['id']!r} came before")
        self._ids.add(entry["id"])
        self._calls.append(Call(entry["id"], function["name"], function["arguments"]))

    def _extend(self, number: int, index: int, entry: dict[str, Any]) -> None:
        call = self._calls[index]
        if entry.get("id", call.id) not in (call.id, "", None):
            fail("I5", number, f"index {index} is shared by {call.id!r} and {entry['id']!r}")
        function = entry.get("function")
        if set(entry) != {"index", "function"} or type(function) is not dict or set(function) != {"arguments"}:
            fail("I7", number, f"a later delta has index and function.arguments alone, not {entry!r}")
        fragment = function["arguments"]
        if type(fragment) is not str:
            fail("I7", number, f"arguments {fragment!r} are no string")
        if not fragment:
            fail("I9", number, "a later delta with an empty fragment")
        if index != len(self._calls) - 1:
            fail("I18", number, f"a fragment of call {index} after call {len(self._calls) - 1} began")
        self._calls[index] = call._replace(arguments_text=call.arguments_text + fragment)


def _fault(arguments_text: str) -> str | None:
    """Return what is wrong with the text of an arguments object; `unfinished` for a prefix of a good one."""
    try:
        value, end = json.JSONDecoder().raw_decode(arguments_text)
    except json.JSONDecodeError:
        return "unfinished" if _is_open(arguments_text) else "not JSON"
    if type(value) is not dict:
        return "not an object"
    return None if end == len(arguments_text.rstrip()) else "more than one object"


def _is_open(text: str) -> bool:
    """Whether `text` is empty or begins an object that it does not close."""
    depth, in_string, escaped = 0, False, False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
    return not text or (text.startswith("{") and (depth > 0 or in_string))
