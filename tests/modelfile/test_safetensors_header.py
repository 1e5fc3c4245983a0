"""A .safetensors header is checked before the library sees the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from midstream.errors import ModelFileError
from midstream.modelfile.safetensors_header import check_safetensors


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: Any, num_data_bytes: int) -> Path:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data + bytes(num_data_bytes))
    return path


def test_what_the_library_writes_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "a": np.zeros((2, 3), np.float32),
        "b": np.zeros((5,), np.float16),
        "c": np.zeros((0, 4), np.int8),
    }
    save_file(tensors, path, metadata={"format": "np"})
    found = check_safetensors(path)
    assert {name: (info.dtype, info.shape, info.nbytes) for name, info in found.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("F16", (5,), 10),
        "c": ("I8", (0, 4), 0),
    }
    tensors["a"][:] = [[1, 2, 3], [4, 5, 6]]
    save_file(tensors, path)
    info = check_safetensors(path)["a"]
    assert path.read_bytes()[info.offset : info.offset + info.nbytes] == tensors["a"].tobytes()


@pytest.mark.parametrize(
    ("header", "num_data_bytes", "message"),
    [
        (b"{", 0, "not valid JSON"),
        (b"[]", 0, "no JSON object"),
        (b'{"a": 1, "a": 2}', 0, "twice"),
        ({"a": 3}, 0, "wrongly"),
        ({"a": entry([1], 0, 4, "F99")}, 4, "dtype 'F99'"),
        ({"a": entry([-1], 0, 4)}, 4, "natural number"),
        ({"a": entry([True], 0, 4)}, 4, "natural number"),
        ({"a": entry([2], 0, 4)}, 4, "its shape needs 8"),
        ({"a": entry([2**40, 2**40], 0, 4)}, 4, "its shape needs"),
        ({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, 4, "an overlap or a hole"),
        ({"a": entry([1], 4, 8)}, 8, "an overlap or a hole"),
        ({"a": entry([1], 0, 4)}, 3, "holds 3"),
        ({"a": entry([1], 0, 4)}, 9, "holds 9"),
    ],
)
def test_a_lie_in_the_header_is_named(tmp_path: Path, header: Any, num_data_bytes: int, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        check_safetensors(write(tmp_path / "x.safetensors", header, num_data_bytes))


@pytest.mark.parametrize("data", [b"", b"\x01", b"\xff" * 8, (1000).to_bytes(8, "little") + b"{}"])
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="claims a header"):
        check_safetensors(path)
