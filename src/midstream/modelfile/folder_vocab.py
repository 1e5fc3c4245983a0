"""Owns building a tokenizer from a Hugging Face folder's tokenizer.json. Never imports transformers.

The added tokens are taken out of the library's hands: its tokenizer knows the plain vocabulary only, so that
no text, whatever it says, turns into one of them.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from midstream.errors import ModelFileError
from midstream.modelfile.bpe import byte_level_piece, encode_text, sentencepiece_piece
from midstream.modelfile.json_file import read_json, read_json_if_there
from midstream.modelfile.token_parts import END_TEXTS, AddedToken, Before, TextEncoder, TokenParts

MAX_TOKENS = 1 << 22
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def folder_parts(folder: Path) -> TokenParts:
    """Build what the folder's tokenizer is made of. Raises ModelFileError for a model other than BPE."""
    path = folder / "tokenizer.json"
    spec = read_json(path)
    config = read_json_if_there(folder / "tokenizer_config.json")
    try:
        return _parts(folder, spec, config)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ModelFileError(f"{path} is not a tokenizer this server understands ({error!r})") from error


def _parts(folder: Path, spec: dict[str, Any], config: dict[str, Any]) -> TokenParts:
    model = spec["model"]
    if model.get("type") != "BPE":
        raise ModelFileError(f"{folder} has a tokenizer of type {model.get('type')!r}; BPE is supported")
    added = _added_tokens(spec, config)
    bos = _named_id(config.get("bos_token"), added)
    return TokenParts(
        pieces=_pieces(folder, spec, added),
        added=added,
        encode_text=_text_encoder(folder, _without_added(spec, added)),
        bos_token_id=bos,
        eos_token_ids=_eos_token_ids(folder, config, added),
        adds_bos=bool(config.get("add_bos_token", _template_starts_with(spec, bos, added))),
        has_space_prefix=any(_prefixes(spec)),
    )


def _added_tokens(spec: dict[str, Any], config: dict[str, Any]) -> tuple[AddedToken, ...]:
    entries = {int(entry["id"]): entry for entry in spec.get("added_tokens") or ()}
    for key, entry in (config.get("added_tokens_decoder") or {}).items():
        entries.setdefault(int(key), entry)
    return tuple(
        AddedToken(
            text=str(entry["content"]),
            id=index,
            is_special=bool(entry.get("special")),
            strips_left=bool(entry.get("lstrip")),
            strips_right=bool(entry.get("rstrip")),
            is_single_word=bool(entry.get("single_word")),
        )
        for index, entry in sorted(entries.items())
        if entry["content"]
    )


def _without_added(spec: dict[str, Any], added: tuple[AddedToken, ...]) -> dict[str, Any]:
    """The tokenizer that knows no added token: not as one, not as a word, not as the result of a merge."""
    model = spec["model"]
    unknown = model.get("unk_token")  # the library looks it up for a character that it has no token for
    gone = {token.text for token in added} - {unknown}
    vocab = {text: index for text, index in model["vocab"].items() if text not in gone}
    pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    merges = [(left, right) for left, right in pairs if left + right in vocab and left in vocab and right in vocab]
    plain = {**model, "vocab": vocab, "merges": merges}
    return {
        **spec,
        "model": plain,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _text_encoder(folder: Path, spec: dict[str, Any]) -> TextEncoder:
    first = _fast(folder, spec)
    prefixes = list(_prefixes(spec))
    later = _fast(folder, _without_prefix(spec)) if prefixes else first
    # "first": only the very start of a text gets the space, not the text after an added token.
    after_added = later if "first" in prefixes else first
    by_place = {Before.START: first, Before.ADDED_TOKEN: after_added, Before.TEXT: later}

    def encode(text: str, before: Before) -> list[int]:
        return encode_text(by_place[before], text)

    return encode


def _fast(folder: Path, spec: dict[str, Any]) -> FastTokenizer:
    try:
        return FastTokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"{folder}/tokenizer.json was refused by the tokenizers library: {error}") from error


def _steps(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The normalizer's and the pre-tokenizer's steps, sequences laid open."""
    for step in (spec.get("normalizer"), spec.get("pre_tokenizer")):
        if step:
            yield from step.get("normalizers") or step.get("pretokenizers") or (step,)


def _prefixes(spec: dict[str, Any]) -> Iterator[str]:
    """The ways in which the tokenizer puts a space before a text."""
    for step in _steps(spec):
        if step["type"] == "Prepend" or (step["type"] == "ByteLevel" and step.get("add_prefix_space")):
            yield "always"
        elif step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            yield str(step.get("prepend_scheme", "always"))


def _without_prefix(spec: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps({**spec, "model": None}))
    for step in _steps(copy):
        if step["type"] == "Prepend":
            step["prepend"] = ""
        elif step["type"] == "ByteLevel":
            step["add_prefix_space"] = False
        elif step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
            step.pop("add_prefix_space", None)
    return {**copy, "model": spec["model"]}


def _pieces(folder: Path, spec: dict[str, Any], added: tuple[AddedToken, ...]) -> list[bytes]:
    model = spec["model"]
    texts: dict[int, str] = {index: text for text, index in model["vocab"].items()}
    ids = [*texts, *(token.id for token in added)]
    if not ids or min(ids) < 0 or max(ids) >= MAX_TOKENS:
        raise ModelFileError(f"{folder}/tokenizer.json has ids outside 0 to {MAX_TOKENS - 1}")
    is_byte_level = any(step["type"] == "ByteLevel" for step in [*_steps(spec), spec.get("decoder") or {"type": ""}])
    if not is_byte_level and not model.get("byte_fallback"):
        raise ModelFileError(f"{folder} has a BPE tokenizer without byte-level or byte fallback; it is not supported")
    pieces = [b""] * (max(ids) + 1)
    for index, text in texts.items():
        pieces[index] = (
            byte_level_piece(text)
            if is_byte_level
            else sentencepiece_piece(text, is_byte=BYTE_TOKEN.fullmatch(text) is not None)
        )
    for token in added:
        pieces[token.id] = token.text.encode()
    return pieces


def _named_id(name: Any, added: tuple[AddedToken, ...]) -> int | None:
    """Id of a token that tokenizer_config.json names by its text or as an object."""
    text = name.get("content") if isinstance(name, dict) else name
    return next((token.id for token in added if token.text == text), None)


def _eos_token_ids(folder: Path, config: dict[str, Any], added: tuple[AddedToken, ...]) -> tuple[int, ...]:
    """What the folder's configurations name, the tokenizer's own, then every token that ends a turn."""
    ids: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        named = read_json_if_there(folder / name).get("eos_token_id")
        ids.extend(named if isinstance(named, list) else [named])
    ids.append(_named_id(config.get("eos_token"), added))
    ids.extend(token.id for token in added if token.is_special and token.text in END_TEXTS)
    return tuple(dict.fromkeys(token_id for token_id in ids if type(token_id) is int))


def _template_starts_with(spec: dict[str, Any], bos: int | None, added: tuple[AddedToken, ...]) -> bool:
    """Whether the post-processor puts the BOS token first."""
    processor = spec.get("post_processor") or {}
    for step in processor.get("processors") or (processor,):
        single = step.get("single") or ()
        if single and "SpecialToken" in single[0]:
            return bos is not None and _named_id(single[0]["SpecialToken"]["id"], added) == bos
    return False
