"""Owns the reading of one call written as Python: `name(key=literal, …)`. Evaluates literals alone, never code."""

import ast
import json
import warnings

from midstream.routing.watching.events import TypedArgument
from midstream.routing.watching.listed_call import ListedCall, Listing
from midstream.routing.watching.literal_scanner import LiteralScanner

_LISTING = Listing(name=r"[A-Za-z_][\w.\-]*", key=r"[A-Za-z_]\w*", opening="(", assigns="=", closing=")")
_QUOTES = ('"', "'", '"""', "'''")
_JSON_NAMES = {"true": "True", "false": "False", "null": "None"}


class PythonCall(ListedCall):
    """Feeds on a call with keyword arguments. Positional ones, names and expressions are no call."""

    def __init__(self) -> None:
        super().__init__(_LISTING)

    def _new_scanner(self) -> LiteralScanner:
        return LiteralScanner(_QUOTES, ",)", has_escapes=True)

    def _argument(self, key: str, text: str) -> TypedArgument | None:
        value = literal_json(text)
        return None if value is None else TypedArgument(key, value)


def literal_json(text: str) -> str | None:
    """The JSON of a Python literal (JSON's own `true`, `false` and `null` are taken too); None where it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash that escapes nothing is the model's, not ours to report
            value = ast.literal_eval(_JSON_NAMES.get(text, text))
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
