"""Owns the reading of a GGUF file's header over mmap. Never computes with a tensor, never trusts a length.

    "GGUF" | u32 version | u64 num_tensors | u64 num_pairs | pairs… | tensor infos… | padding | tensor data…

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every count is checked against the bytes
that are left in the file before anything is allocated for it.
"""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from midstream.errors import ModelFileError
from midstream.modelfile.byte_cursor import ByteCursor

SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_DIM_SIZE = (1 << 48) - 1
MIN_PAIR_BYTES = 8 + 4 + 1  # key length, value type, the smallest value
MIN_TENSOR_INFO_BYTES = 8 + 4 + 8 + 4 + 8  # name length, number of dims, one dim, type, offset

SCALARS: dict[GGUFValueType, str] = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in numpy's order, rows first; `offset` is from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


class GgufFile:
    """A checked header and the mapped bytes behind it. Arrays are `list[str]` or numpy."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self._data = data
        cursor = ByteCursor(data, path)
        num_tensors, num_pairs = _read_preamble(cursor)
        self.metadata: dict[str, Any] = _read_metadata(cursor, num_pairs)
        self.tensors: dict[str, TensorInfo] = _read_tensor_infos(cursor, num_tensors, _alignment(self.metadata, cursor))

    @classmethod
    def open(cls, path: Path | str) -> "GgufFile":
        """Map `path` and check its header. Raises ModelFileError with the offending value and its limit."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelFileError(f"{path} is empty; a GGUF file starts with the bytes 'GGUF'") from None
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {error.strerror}") from error
        return cls(path, data)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a read-only view of the mapped bytes of tensor `name`  # [nbytes] uint8. Copies nothing."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path} has no tensor {name!r}; it may be of another architecture")
        return np.frombuffer(self._data, np.uint8, count=info.nbytes, offset=info.offset)


def _read_preamble(cursor: ByteCursor) -> tuple[int, int]:
    magic = cursor.take(4, "the magic bytes")
    if magic != b"GGUF":
        raise cursor.error(f"starts with {magic!r}, not b'GGUF': it is not a GGUF file")
    version = cursor.u32("the version")
    if version not in SUPPORTED_VERSIONS:
        if version & 0xFFFF == 0:
            raise cursor.error("is big-endian; convert the model again with little-endian byte order")
        raise cursor.error(f"has GGUF version {version}; 2 and 3 are supported; convert the model again")
    num_tensors = cursor.count(MIN_TENSOR_INFO_BYTES, "tensors")
    num_pairs = cursor.count(MIN_PAIR_BYTES, "metadata pairs")
    return num_tensors, num_pairs


def _read_metadata(cursor: ByteCursor, num_pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise cursor.error(f"has the metadata key {key!r} twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: ByteCursor, key: str) -> Any:
    value_type = _value_type(cursor, key)
    if value_type is GGUFValueType.STRING:
        return cursor.string(key)
    if value_type is GGUFValueType.ARRAY:
        return _read_array(cursor, key)
    return _read_numbers(cursor, key, value_type, 1)[0].item()


def _read_array(cursor: ByteCursor, key: str) -> Any:
    item_type = _value_type(cursor, key)
    if item_type is GGUFValueType.ARRAY:
        raise cursor.error(f"nests an array in the array {key!r}; arrays of numbers or strings are supported")
    if item_type is GGUFValueType.STRING:
        return cursor.strings(cursor.count(8, f"strings in {key}"), key)
    count = cursor.count(np.dtype(SCALARS[item_type]).itemsize, f"items in {key}")
    return _read_numbers(cursor, key, item_type, count)


def _read_numbers(cursor: ByteCursor, key: str, value_type: GGUFValueType, count: int) -> npt.NDArray[Any]:
    dtype = np.dtype(SCALARS[value_type])
    data = cursor.take(count * dtype.itemsize, key)
    if value_type is GGUFValueType.BOOL and max(data, default=0) > 1:
        raise cursor.error(f"has the boolean {max(data)} in {key!r}; only 0 and 1 are allowed")
    return np.frombuffer(data, dtype)


def _value_type(cursor: ByteCursor, key: str) -> GGUFValueType:
    number = cursor.u32(f"the type of {key}")
    try:
        return GGUFValueType(number)
    except ValueError:
        raise cursor.error(f"gives {key!r} the value type {number}; types 0 to 12 are known") from None


def _alignment(metadata: dict[str, Any], cursor: ByteCursor) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_power_of_two = isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0
    if not is_power_of_two or alignment > MAX_ALIGNMENT:
        raise cursor.error(f"has alignment {alignment!r}; it must be a power of two up to {MAX_ALIGNMENT}")
    assert isinstance(alignment, int)
    return alignment


def _read_tensor_infos(cursor: ByteCursor, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    relative: list[TensorInfo] = []
    names: set[str] = set()
    for _ in range(num_tensors):
        info = _read_tensor_info(cursor, alignment)
        if info.name in names:
            raise cursor.error(f"has the tensor {info.name!r} twice")
        names.add(info.name)
        relative.append(info)
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {
        info.name: TensorInfo(info.name, info.shape, info.type, data_start + info.offset, info.nbytes)
        for info in relative
    }
    _check_extents(cursor, tensors)
    return tensors


def _read_tensor_info(cursor: ByteCursor, alignment: int) -> TensorInfo:
    name = cursor.string("a tensor's name")
    num_dims = cursor.u32(f"the dims of {name}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.error(f"gives tensor {name!r} {num_dims} dimensions; 1 to {MAX_DIMS} are allowed")
    dims = [cursor.u64(f"a dim of {name}") for _ in range(num_dims)]  # fastest dimension first
    if min(dims) < 1 or max(dims) > MAX_DIM_SIZE:
        raise cursor.error(f"gives tensor {name!r} the dims {dims}; each must lie in 1 to {MAX_DIM_SIZE}")
    tensor_type = _tensor_type(cursor, name)
    block_size, block_bytes = GGML_QUANT_SIZES[tensor_type]
    if dims[0] % block_size:
        raise cursor.error(
            f"gives tensor {name!r} rows of {dims[0]}; {tensor_type.name} needs multiples of {block_size}"
        )
    offset = cursor.u64(f"the offset of {name}")
    if offset % alignment:
        raise cursor.error(f"puts tensor {name!r} at offset {offset}, which is no multiple of {alignment}")
    nbytes = math.prod(dims) // block_size * block_bytes
    return TensorInfo(name, tuple(reversed(dims)), tensor_type, offset, nbytes)


def _tensor_type(cursor: ByteCursor, name: str) -> GGMLQuantizationType:
    number = cursor.u32(f"the type of {name}")
    try:
        tensor_type = GGMLQuantizationType(number)
    except ValueError:
        raise cursor.error(f"gives tensor {name!r} the unknown type {number}; try a newer gguf package") from None
    if tensor_type not in GGML_QUANT_SIZES:
        raise cursor.error(f"gives tensor {name!r} the type {tensor_type.name}, whose block size is unknown")
    return tensor_type


def _check_extents(cursor: ByteCursor, tensors: dict[str, TensorInfo]) -> None:
    end, previous = 0, ""
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:
            raise cursor.error(f"has tensor {info.name!r} overlap {previous!r} at byte {info.offset}")
        end, previous = info.offset + info.nbytes, info.name
        if end > cursor.size:
            raise cursor.error(
                f"is cut short at byte {cursor.size}: tensor {info.name!r} ends at {end}; fetch it again"
            )
