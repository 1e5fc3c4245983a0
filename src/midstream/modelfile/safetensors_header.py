"""Owns the check of a .safetensors header before the library opens the file. Never reads a tensor.

    u64 header length | JSON {name: {dtype, shape, data_offsets: [begin, end)}} | tensor data, without holes

Source: https://github.com/huggingface/safetensors#format.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream.errors import ModelFileError

MAX_HEADER_BYTES = 100_000_000  # the library's own limit
ITEM_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


@dataclass(frozen=True)
class SafetensorsInfo:
    """`offset` counts from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def check_safetensors(path: Path) -> dict[str, SafetensorsInfo]:
    """What and where each tensor is. Raises ModelFileError with the offending value and its limit."""
    header, num_header_bytes, num_data_bytes = _read_header(path)
    header.pop("__metadata__", None)
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, SafetensorsInfo] = {}
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(path, name, entry)
        tensors[name] = SafetensorsInfo(dtype, shape, 8 + num_header_bytes + begin, end - begin)
        spans.append((begin, end, name))
    _check_spans(path, spans, num_data_bytes)
    return tensors


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    try:
        with path.open("rb") as file:
            num_file_bytes = path.stat().st_size
            prefix = file.read(8)
            num_header_bytes = int.from_bytes(prefix, "little")
            limit = min(num_file_bytes - 8, MAX_HEADER_BYTES)
            if len(prefix) < 8 or num_header_bytes > limit:
                raise ModelFileError(
                    f"{path} claims a header of {num_header_bytes} bytes; the limit is {max(limit, 0)}"
                )
            text = file.read(num_header_bytes)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} has a header that is not valid JSON ({error}); fetch it again") from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{path} has a header that is no JSON object; fetch it again")
    return header, num_header_bytes, num_file_bytes - 8 - num_header_bytes


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError) as error:
        raise ModelFileError(f"{path} describes tensor {name!r} wrongly: {entry!r}; fetch it again") from error
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ModelFileError(f"{path} gives tensor {name!r} the dtype {dtype!r}; known are {', '.join(ITEM_BYTES)}")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ModelFileError(f"{path} gives tensor {name!r} a shape or offset that is no natural number: {entry!r}")
    num_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != num_bytes:
        raise ModelFileError(f"{path} gives tensor {name!r} {end - begin} bytes; its shape needs {num_bytes}")
    return dtype, tuple(shape), begin, end


def _check_spans(path: Path, spans: list[tuple[int, int, str]], num_data_bytes: int) -> None:
    expected = 0
    for begin, end, name in sorted(spans):
        if begin != expected:
            raise ModelFileError(f"{path} puts tensor {name!r} at {begin}, not at {expected}: an overlap or a hole")
        expected = end
    if expected != num_data_bytes:
        raise ModelFileError(f"{path} describes {expected} bytes of tensors and holds {num_data_bytes}; fetch it again")
