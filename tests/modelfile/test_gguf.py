"""A GGUF header is read exactly or refused with ModelFileError, whatever its bytes say."""

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from tests.modelfile.ggufs import write_llama

STRING, ARRAY, U32 = 8, 9, 4


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(num_tensors: int, num_pairs: int, body: bytes = b"", magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_pairs) + body


def tensor(
    name: bytes = b"a",
    dims: tuple[int, ...] = (8,),
    kind: int = 0,
    offset: int = 0,
    num_dims: int | None = None,
) -> bytes:
    num_dims = len(dims) if num_dims is None else num_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", num_dims, *dims, kind, offset)


@pytest.fixture
def open_bytes(tmp_path: Path) -> Callable[[bytes], GgufFile]:
    def open_bytes(data: bytes) -> GgufFile:
        path = tmp_path / "x.gguf"
        path.write_bytes(data)
        return GgufFile.open(path)

    return open_bytes


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    def add(writer: GGUFWriter) -> None:
        writer.add_token_list(["a", "b", "é"])
        writer.add_token_types([1, 1, 3])
        writer.add_bool("flag", True)
        writer.add_array("flags", [True, False])

    return write_llama(tmp_path / "tiny.gguf", 3, add)


def test_metadata_and_tensors_are_what_the_writer_wrote(tiny: Path) -> None:
    gguf = GgufFile.open(tiny)
    assert gguf.metadata["tokenizer.ggml.tokens"] == ["a", "b", "é"]
    assert gguf.metadata["tokenizer.ggml.token_type"].tolist() == [1, 1, 3]
    assert gguf.metadata["flag"] is True
    assert gguf.metadata["flags"].tolist() == [True, False]
    assert gguf.metadata["llama.rope.freq_base"] == 10000.0
    assert gguf.tensors["blk.0.attn_k.weight"].shape == (16, 32)
    for reference in GGUFReader(tiny).tensors:
        info = gguf.tensors[reference.name]
        assert (info.offset, info.nbytes, info.type) == (
            reference.data_offset,
            reference.n_bytes,
            reference.tensor_type,
        )


@pytest.mark.model
def test_the_embedded_model_reads_like_the_gguf_package_reads_it(gguf: GgufFile) -> None:
    reference = GGUFReader(gguf.path)
    assert list(gguf.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors[:20]:
        assert gguf.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        assert np.array_equal(gguf.raw(tensor.name), tensor.data.reshape(-1).view(np.uint8))


def test_raw_bytes_cannot_be_written(tiny: Path) -> None:
    view = GgufFile.open(tiny).raw("token_embd.weight")
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ModelFileError, match="no tensor 'nope'"):
        GgufFile.open(tiny).raw("nope")


def test_a_missing_or_empty_file_is_a_model_file_error(tmp_path: Path, open_bytes: Callable[[bytes], object]) -> None:
    with pytest.raises(ModelFileError, match="cannot read"):
        GgufFile.open(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="is empty"):
        open_bytes(b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGML" + bytes(20), "not b'GGUF'"),
        (header(0, 0, version=1), "version 1; 2 and 3"),
        (header(0, 0, version=4), "version 4"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (header(2**60, 0), "claims 1152921504606846976 tensors"),
        (header(0, 2**63), "metadata pairs"),
        (
            header(0, 1, text(b"k") + struct.pack("<IQ", STRING, 2**40) + bytes(9)),
            "needs 1099511627776",
        ),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", ARRAY, STRING, 2**50)), "strings in k"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", ARRAY, U32, 2**62)), "items in k"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)), "nests an array"),
        (
            header(0, 1, text(b"k") + struct.pack("<IIQQ", ARRAY, STRING, 1, 99)),
            "claims 99 bytes",
        ),
        (header(0, 1, text(b"k") + struct.pack("<IQ", 13, 0)), "value type 13"),
        (header(0, 1, text(b"k") + struct.pack("<IB", 7, 2)), "boolean 2"),
        (header(0, 1, text(b"\xff") + struct.pack("<II", U32, 0)), "not UTF-8"),
        (header(0, 1, text(b"k") + struct.pack("<I", STRING) + text(b"\xff")), "not UTF-8: k"),
        (header(0, 2, (text(b"k") + struct.pack("<II", U32, 0)) * 2), "'k' twice"),
        (header(0, 1, text(b"general.alignment") + struct.pack("<II", U32, 24)), "alignment 24"),
        (header(2, 0, tensor() + tensor(offset=32) + bytes(128)), "'a' twice"),
        (header(1, 0, tensor(kind=999) + bytes(64)), "unknown type 999"),
        (header(1, 0, tensor(num_dims=9) + bytes(64)), "9 dimensions"),
        (header(1, 0, tensor(dims=(0,)) + bytes(64)), r"dims \[0\]"),
        (header(1, 0, tensor(dims=(2**63, 2**63)) + bytes(64)), "each must lie in"),
        (header(1, 0, tensor(dims=(31,), kind=2) + bytes(64)), "multiples of 32"),
        (header(1, 0, tensor(offset=8) + bytes(64)), "no multiple of 32"),
        (header(1, 0, tensor(dims=(4096,)) + bytes(64)), "cut short"),
        (header(1, 0, tensor(offset=2**50) + bytes(64)), "cut short"),
        (header(2, 0, tensor(dims=(16,)) + tensor(b"b", offset=32) + bytes(256)), "overlap"),
    ],
)
def test_a_lie_in_the_header_is_named(open_bytes: Callable[[bytes], object], data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        open_bytes(data)


def test_a_file_cut_anywhere_is_refused(tiny: Path, open_bytes: Callable[[bytes], object]) -> None:
    data = tiny.read_bytes()
    for size in [*range(0, 1500, 7), *range(1500, len(data), 997)]:
        with pytest.raises(ModelFileError):
            open_bytes(data[:size])


def test_mutated_headers_give_only_model_file_errors_and_allocate_little(
    tiny: Path, open_bytes: Callable[[bytes], object]
) -> None:
    data = tiny.read_bytes()
    rng = random.Random(11)
    tracemalloc.start()
    for _ in range(1500):
        mutated = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(1500)
            width = rng.choice((1, 4, 8))
            mutated[at : at + width] = rng.choice((b"\xff" * width, b"\0" * width, rng.randbytes(width)))
        with contextlib.suppress(ModelFileError):
            open_bytes(bytes(mutated))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20 * len(data)
