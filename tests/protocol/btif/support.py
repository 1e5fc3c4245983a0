"""Owns what the BTIF tests share: the vectors and ways to rewrite arguments and frames. Holds no test."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from midstream.protocol.btif import FrameBuilder, Layout

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
ANY = Layout.of({})
FLIGHT = Layout.of(
    {
        "properties": {"airport": {"type": "string"}, "date": {"type": "string", "format": "date"}},
        "required": ["airport"],
    }
)


def titled(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", VECTORS[kind], ids=[vector["title"] for vector in VECTORS[kind]])


def build_shuffled(tool_id: int, layout: Layout, arguments_json: str, seed: int) -> bytes:
    items = list(json.loads(arguments_json, parse_int=Literal, parse_float=Literal).items())
    random.Random(seed).shuffle(items)
    builder = FrameBuilder(tool_id, layout)
    for name, value in items:
        builder.put(name, text_of(value))
    return builder.build()


class Literal(str):
    """A number that keeps the text it was written in."""


def text_of(value: Any) -> str:
    match value:
        case Literal():
            return str(value)
        case dict():
            return "{" + ",".join(f"{json.dumps(k)}: {text_of(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + " , ".join(map(text_of, value)) + "]"
        case _:
            return json.dumps(value)


def mutate(frame: bytes, rng: random.Random) -> bytes:
    mutant = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(mutant)) if mutant else 0
        match rng.randrange(4):
            case 0 if mutant:
                mutant[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), rng.randrange(13)])
            case 1:
                del mutant[at : at + rng.randint(1, 4)]
            case 2:
                mutant[at:at] = rng.randbytes(rng.randint(1, 4))
            case _:
                mutant += mutant[at : at + 8]
    return bytes(mutant)


def typed(value: Any) -> Any:
    match value:
        case dict():
            return {key: typed(item) for key, item in value.items()}
        case list():
            return [typed(item) for item in value]
        case _:
            return type(value).__name__, repr(value)
