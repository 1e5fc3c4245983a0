"""Owns the kernels as they are built for ARM, on a machine of another kind: cross-compiled, run under qemu.

`EmulatedLibrary` takes the calls that tests and `NativeModel` make of the library; each is a process. What a call's
pointers lead to is laid into a file, driver.cpp maps the file where the pointers say, and the results are copied back.
"""

import ctypes
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from midstream.engine.kernels.cpu import structs
from midstream.engine.kernels.cpu.compile import SOURCES
from midstream.engine.kernels.cpu.repack import BLOCK, GROUP, WeightType

BASE = 1 << 36
"""Where driver.cpp maps the file."""

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
_FLAGS = ("-O3", "-std=c++17", "-static", "-pthread")
_TIMEOUT_S = 100
_ALIGNMENT = 64
_BYTES_PER_BLOCK = {
    WeightType.Q4_0: 288,
    WeightType.Q4_1: 320,
    WeightType.Q8_0: 544,
    WeightType.F32: BLOCK * GROUP * 4,
    WeightType.F16: BLOCK * GROUP * 2,
    WeightType.BF16: BLOCK * GROUP * 2,
}
"""`bytes_per_block` of weights.h."""


def missing_tools() -> list[str]:
    return [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]


def build(march: str, target: Path) -> None:
    source = Path(__file__).with_name("driver.cpp")
    command = [COMPILER, *_FLAGS, f"-march={march}", f"-I{SOURCES}", str(source), "-o", str(target)]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)


class Image:
    """One call's memory: copies of this process's, at the addresses where the driver will have them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._results: list[tuple[int, slice]] = []

    def put(self, address: int | None, num_bytes: int, *, is_result: bool = False) -> int:
        """The address in the driver; null stays null."""
        if address is None:
            return 0
        self.data += bytes(-len(self.data) % _ALIGNMENT)
        start = len(self.data)
        self.data += ctypes.string_at(address, num_bytes)
        if is_result:
            self._results.append((address, slice(start, start + num_bytes)))
        return BASE + start

    def put_struct(self, struct: Any) -> int:
        return self.put(ctypes.addressof(struct), ctypes.sizeof(struct))

    def take_results(self, data: bytes) -> None:
        for address, part in self._results:
            ctypes.memmove(address, data[part], part.stop - part.start)


class EmulatedLibrary:
    """The functions of library.cpp, as ctypes has them. A model is made anew for each step; its KV cache stays."""

    def __init__(self, driver: Path, folder: Path) -> None:
        self._driver = driver
        self._file = folder / "memory"
        self.ms_model_new = partial(self._new_model)  # has attributes, as ctypes' functions have

    def instruction_set(self) -> str:
        return self._run("instruction_set")

    def ms_linear(self, linear: Any, x: ctypes.c_void_p, num_tokens: int, y: ctypes.c_void_p) -> None:
        image, struct = Image(), linear._obj
        inputs = image.put(x.value, 4 * num_tokens * struct.columns)
        outputs = image.put(y.value, 4 * num_tokens * struct.rows, is_result=True)
        self._call(image, "linear", image.put_struct(_moved_linear(image, struct)), inputs, num_tokens, outputs)

    def ms_row(self, linear: Any, index: int, out: ctypes.c_void_p) -> None:
        image, struct = Image(), linear._obj
        output = image.put(out.value, 4 * struct.columns, is_result=True)
        self._call(image, "row", image.put_struct(_moved_linear(image, struct)), index, output)

    def ms_attend(
        self, shape: Any, num_tokens: int, start: int, table: ctypes.c_void_p, *rest: ctypes.c_void_p
    ) -> None:
        """rest: query, keys, values, output."""
        image, s = Image(), shape._obj
        num_blocks = -(-(start + num_tokens) // s.block_size)
        last_block = max((ctypes.c_int32 * num_blocks).from_address(table.value or 0))
        cache_bytes = 2 * (last_block * s.block_stride + s.num_kv_heads * s.block_size * s.head_dim)
        query_bytes = 4 * num_tokens * s.num_heads * s.head_dim
        query, keys, values, output = rest
        self._call(
            image,
            "attend",
            image.put_struct(s),
            num_tokens,
            start,
            image.put(table.value, 4 * num_blocks),
            image.put(query.value, query_bytes),
            image.put(keys.value, cache_bytes),
            image.put(values.value, cache_bytes),
            image.put(output.value, query_bytes, is_result=True),
        )

    def ms_model_step(self, _: ctypes.c_void_p, batch: Any) -> None:
        image, (config, layers, ends, num_threads) = Image(), self._model
        moved_layers = (structs.Layer * len(layers))(*(_moved_layer(image, config, layer) for layer in layers))
        arguments = (config, moved_layers, _moved_ends(image, config, ends, _num_blocks(batch._obj)))
        moved_batch = image.put_struct(_moved_batch(image, config, batch._obj))
        self._call(image, "step", *map(image.put_struct, arguments), num_threads, moved_batch)

    def ms_model_delete(self, _: ctypes.c_void_p) -> None:
        pass

    def _new_model(self, config: Any, layers: Any, ends: Any, num_threads: int) -> int:
        self._model = (config._obj, layers, ends._obj, num_threads)
        return 1

    def _call(self, image: Image, function: str, *arguments: int) -> None:
        self._file.write_bytes(image.data)
        self._run(function, *arguments)
        image.take_results(self._file.read_bytes())

    def _run(self, function: str, *arguments: int) -> str:
        command = [EMULATOR, str(self._driver), str(self._file), function, *map(str, arguments)]
        return subprocess.run(command, check=True, timeout=_TIMEOUT_S, capture_output=True, text=True).stdout.strip()


# --- copies of structures whose pointers lead into the image; sizes as interface.h states them ---


def _moved(image: Image, struct: Any, sizes: dict[str, int], results: tuple[str, ...] = ()) -> Any:
    """sizes: in bytes, of what each pointer leads to."""
    moved = type(struct).from_buffer_copy(struct)
    for name, num_bytes in sizes.items():
        setattr(moved, name, image.put(getattr(struct, name), num_bytes, is_result=name in results))
    return moved


def _moved_linear(image: Image, linear: Any) -> Any:
    packed = _BYTES_PER_BLOCK[WeightType(linear.type)] * (linear.rows // GROUP) * (linear.columns // BLOCK)
    return _moved(image, linear, {"packed": packed, "bias": 4 * linear.rows})


def _moved_layer(image: Image, config: Any, layer: Any) -> Any:
    sizes = dict.fromkeys(("input_norm", "attended_norm", "post_norm", "fed_norm"), 4 * config.hidden)
    sizes |= dict.fromkeys(("q_norm", "k_norm"), 4 * config.head_dim)
    sizes |= dict.fromkeys(("cosines", "sines"), 4 * config.max_positions * config.head_dim // 2)
    moved = _moved(image, layer, sizes)
    for name in ("qkv", "o", "gate_up", "down"):
        setattr(moved, name, _moved_linear(image, getattr(layer, name)))
    return moved


def _num_blocks(batch: Any) -> int:
    """One more than the highest block that a step touches."""
    tables = (ctypes.c_int32 * (batch.num_rows * batch.max_blocks)).from_address(batch.block_tables)
    return 1 + max(int(block) for block in tables)


def _moved_ends(image: Image, config: Any, ends: Any, num_blocks: int) -> Any:
    block_values = 2 * config.num_layers * config.num_kv_heads * config.block_size * config.head_dim
    sizes = {"final_norm": 4 * config.hidden, "kv": 2 * num_blocks * block_values}
    moved = _moved(image, ends, sizes, results=("kv",))
    moved.embedding, moved.head = _moved_linear(image, ends.embedding), _moved_linear(image, ends.head)
    return moved


def _moved_batch(image: Image, config: Any, batch: Any) -> Any:
    counts = {
        "token_ids": batch.num_tokens,
        "first_token": batch.num_rows + 1,
        "start": batch.num_rows,
        "block_tables": batch.num_rows * batch.max_blocks,
        "samples": batch.num_samples,
        "logits": batch.num_samples * config.vocab,
    }
    return _moved(image, batch, {name: 4 * count for name, count in counts.items()}, results=("logits",))
