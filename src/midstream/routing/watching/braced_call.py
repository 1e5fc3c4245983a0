"""Owns the reading of one call written as `name{key:value,…}` with quotes of the dialect's own (Gemma)."""

import json
import re

from midstream.routing.watching.events import RawArgument, TypedArgument
from midstream.routing.watching.listed_call import ListedCall, Listing
from midstream.routing.watching.literal_scanner import LiteralScanner

_WORD = r"[^\s{}:,<>|\[\]]+"
_LISTING = Listing(name=_WORD, key=_WORD, opening="{", assigns=":", closing="}")
_ATOM = re.compile(r"\s*([^\s{}\[\]:,]+)\s*")


class BracedCall(ListedCall):
    """Feeds on `name{key:VALUE,…}`; a VALUE is quoted text, a number, a word, a list or an object of them."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        super().__init__(_LISTING)

    def _new_scanner(self) -> LiteralScanner:
        return LiteralScanner((self._quote,), ",}", has_escapes=False)

    def _argument(self, key: str, text: str) -> TypedArgument | RawArgument | None:
        """Quoted text and bare words have no certain type: the template quotes by the schema, a model may not."""
        quote = self._quote
        if text.startswith(quote) and text.endswith(quote) and len(text) >= 2 * len(quote):
            return RawArgument(key, text[len(quote) : -len(quote)])
        if text[:1] in ("[", "{"):
            value = braced_json(text, quote)
            return None if value is None else TypedArgument(key, value)
        return RawArgument(key, text) if text else None


def braced_json(text: str, quote: str) -> str | None:
    """The JSON of a list or an object: quoted parts become strings, words that are no JSON values too."""
    parts = text.split(quote)
    written = [json.dumps(part, ensure_ascii=False) if i % 2 else _plain(part) for i, part in enumerate(parts)]
    try:
        return json.dumps(json.loads("".join(written)), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _plain(text: str) -> str:
    return _ATOM.sub(lambda found: _word(found[1]), text)


def _word(word: str) -> str:
    try:
        json.loads(word)
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return word
