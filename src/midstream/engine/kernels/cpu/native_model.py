"""Owns a model that lives in the compiled library: weights, KV cache, step. Schedules and samples nothing."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from midstream.engine.batch import Batch
from midstream.engine.blocks import BlockCopy
from midstream.engine.kernels.cpu import structs
from midstream.engine.kernels.cpu.structs import pointer
from midstream.engine.layers.rotary import RotaryEmbedding, rotary_embeddings
from midstream.engine.weights.packed import PackedLayer, PackedWeights
from midstream.modelfile.model_config import Activation, ModelConfig

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

PARTS = (
    "embed",
    "qkv",
    "rotate",
    "attend",
    "out",
    "mlp norm",
    "gate and up",
    "down",
    "next norm",
    "final norm",
    "head",
)
"""`Part` of interface.h. In a batch without long rows, rotation is a part of attention."""

_ACTIVATIONS = {Activation.SILU: 0, Activation.GELU_TANH: 1}


@dataclass(frozen=True)
class Sizes:
    """What the buffers are made for, once."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_threads: int


class NativeModel:
    """The whole step as one call. Not thread-safe: the engine's loop thread owns it."""

    def __init__(self, library: ctypes.CDLL, config: ModelConfig, weights: PackedWeights, sizes: Sizes) -> None:
        library.ms_model_new.restype = ctypes.c_void_p
        self._library = library
        self._vocab_size = config.vocab_size
        self._kv: npt.NDArray[np.float16] = np.zeros(
            (sizes.num_blocks, config.num_layers, 2, config.num_kv_heads, sizes.block_size, config.head_dim), np.float16
        )
        factor = weights.frequencies_factor
        full, local = (
            _HalfTables.of(rotary)
            for rotary in rotary_embeddings(
                config, sizes.max_model_len, None if factor is None else torch.from_numpy(factor)
            )
        )
        self._kept = (weights, full, local)  # the library holds pointers into all of these
        self._buffers = _Buffers(sizes, weights.head.rows)
        layers = (structs.Layer * config.num_layers)(
            *(
                _layer(layer, local if config.has_local_rope(index) else full, config.window(index) or 0)
                for index, layer in enumerate(weights.layers)
            )
        )
        ends = structs.Ends(
            pointer(weights.final_norm),
            structs.Linear.of(weights.embedding),
            structs.Linear.of(weights.head),
            pointer(self._kv),
        )
        shape = _shape(config, sizes, weights.head.rows)
        self._model = ctypes.c_void_p(
            library.ms_model_new(ctypes.byref(shape), layers, ctypes.byref(ends), sizes.num_threads)
        )

    def close(self) -> None:
        """End the threads and free what the library holds."""
        self._library.ms_model_delete(self._model)

    def copy(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            part = self._kv[copy.source, ..., : copy.num_slots, :]  # [L, 2, G, slots, D]
            self._kv[copy.target, ..., : copy.num_slots, :] = part

    def warm_up(self, num_tokens: int) -> None:
        """Compute `num_tokens` tokens in the first blocks, which nobody holds yet."""
        num_blocks = -(-num_tokens // self._kv.shape[4])
        self._buffers.clear()
        self._buffers.add([0] * num_tokens, 0, list(range(num_blocks)), num_logits=1)
        self._step()

    def forward(self, batch: Batch) -> Floats:
        """Write the new tokens' KV and return the logits [S, V] that the rows give, valid until the next call."""
        self._buffers.clear()
        for row in batch.rows:
            self._buffers.add(row.token_ids, row.start, row.seq.block_table, num_logits=row.num_logits)
        return self._step()

    @contextmanager
    def timed(self) -> Iterator[dict[str, int]]:
        """Fills the dict, when it is left, with the nanoseconds that each part of the steps within took."""
        part_ns = np.zeros(len(PARTS), np.int64)
        times: dict[str, int] = {}
        self._buffers.struct.part_ns = pointer(part_ns)
        try:
            yield times
        finally:
            self._buffers.struct.part_ns = None
            times.update(zip(PARTS, part_ns.tolist(), strict=True))

    def _step(self) -> Floats:
        buffers = self._buffers
        self._library.ms_model_step(self._model, ctypes.byref(buffers.struct))
        return buffers.logits[: buffers.struct.num_samples, : self._vocab_size]


class _Buffers:
    """The batch as the library reads it, in memory that is taken once."""

    def __init__(self, sizes: Sizes, padded_vocab_size: int) -> None:
        max_blocks = -(-sizes.max_model_len // sizes.block_size)
        max_rows, max_tokens = sizes.max_num_seqs, sizes.max_num_batched_tokens
        self.token_ids: Ints = np.zeros(max_tokens, np.int32)
        self.first_token: Ints = np.zeros(max_rows + 1, np.int32)
        self.start: Ints = np.zeros(max_rows, np.int32)
        self.block_tables: Ints = np.zeros((max_rows, max_blocks), np.int32)
        self.samples: Ints = np.zeros(max_tokens, np.int32)
        # As large as a step could need; memory that is never written takes no room.
        self.logits: Floats = np.empty((max_tokens, padded_vocab_size), np.float32)
        arrays = (self.token_ids, self.first_token, self.start, self.block_tables, self.samples, self.logits)
        self.struct = structs.Batch(0, 0, 0, max_blocks, *map(pointer, arrays))

    def clear(self) -> None:
        self.struct.num_tokens = self.struct.num_rows = self.struct.num_samples = 0

    def add(self, token_ids: list[int], start: int, block_table: list[int], *, num_logits: int) -> None:
        """Lay one row behind the others; its last `num_logits` tokens give logits."""
        struct = self.struct
        row, end = struct.num_rows, struct.num_tokens + len(token_ids)
        self.token_ids[struct.num_tokens : end] = token_ids
        self.first_token[row + 1] = end
        self.start[row] = start
        self.block_tables[row, : len(block_table)] = block_table
        num_samples = struct.num_samples + num_logits
        self.samples[struct.num_samples : num_samples] = range(end - num_logits, end)
        struct.num_tokens, struct.num_rows, struct.num_samples = end, row + 1, num_samples


@dataclass(frozen=True)
class _HalfTables:
    """cos and sin of one rotary embedding, each pair once."""

    cosines: Floats  # [positions, D / 2]
    sines: Floats  # [positions, D / 2]

    @classmethod
    def of(cls, rotary: RotaryEmbedding) -> "_HalfTables":
        half = rotary.cos.shape[1] // 2
        return cls(*(np.ascontiguousarray(table[:, :half].numpy()) for table in (rotary.cos, rotary.sin)))


def _layer(layer: PackedLayer, tables: _HalfTables, sliding_window: int) -> structs.Layer:
    norms = (layer.input_norm, layer.q_norm, layer.k_norm, layer.attended_norm, layer.post_norm, layer.fed_norm)
    linears = (layer.qkv, layer.o, layer.gate_up, layer.down)
    return structs.Layer(
        *map(pointer, norms),
        pointer(tables.cosines),
        pointer(tables.sines),
        *map(structs.Linear.of, linears),
        sliding_window,
    )


def _shape(config: ModelConfig, sizes: Sizes, padded_vocab_size: int) -> structs.Config:
    return structs.Config(
        config.num_layers,
        config.hidden_size,
        config.intermediate_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        padded_vocab_size,
        sizes.block_size,
        sizes.max_model_len,
        _ACTIVATIONS[config.activation],
        config.rms_norm_eps,
        config.embedding_scale,
        config.attention_scale,
    )
