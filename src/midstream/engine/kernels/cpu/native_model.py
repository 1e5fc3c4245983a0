"""Owns a model that lives in the compiled library: weights, KV cache, step. Schedules and samples nothing."""

import ctypes

import numpy as np
import numpy.typing as npt
import torch

from midstream.engine.batch import Batch
from midstream.engine.blocks import BlockCopy
from midstream.engine.kernels.cpu.repack import PackedLinear
from midstream.engine.layers.rotary import RotaryEmbedding
from midstream.engine.weights.packed import PackedWeights
from midstream.modelfile.model_config import ModelConfig

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class _Config(ctypes.Structure):
    """`Config` of model.cpp."""

    _fields_ = [
        *[
            (name, ctypes.c_int32)
            for name in (
                "num_layers",
                "hidden",
                "inner",
                "num_heads",
                "num_kv_heads",
                "head_dim",
                "vocab",
                "block_size",
                "sliding_window",
                "max_positions",
            )
        ],
        ("norm_eps", ctypes.c_float),
    ]


class NativeLinear(ctypes.Structure):
    """`Linear` of linear.h."""

    _fields_ = [
        ("packed", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
    ]


class _Batch(ctypes.Structure):
    """`Batch` of model.cpp."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("num_tokens", "num_rows", "num_samples", "max_blocks")],
        *[
            (name, ctypes.c_void_p)
            for name in ("token_ids", "first_token", "start", "block_tables", "samples", "logits")
        ],
    ]


class NativeModel:
    """The whole step as one call. Not thread-safe: the engine's loop thread owns it."""

    def __init__(
        self,
        library: ctypes.CDLL,
        config: ModelConfig,
        weights: PackedWeights,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        num_threads: int,
    ) -> None:
        library.ms_model_new.restype = ctypes.c_void_p
        self._library = library
        self._vocab_size = weights.head.rows
        self._true_vocab_size = config.vocab_size
        self._kv: npt.NDArray[np.float16] = np.zeros(
            (config.num_layers, 2, num_blocks, config.num_kv_heads, block_size, config.head_dim), np.float16
        )
        factor = weights.frequencies_factor
        rotary = RotaryEmbedding(config, max_model_len, None if factor is None else _tensor(factor))
        half = config.head_dim // 2
        cosines = np.ascontiguousarray(rotary.cos[:, :half].numpy())  # [positions, D / 2]
        sines = np.ascontiguousarray(rotary.sin[:, :half].numpy())  # [positions, D / 2]
        # The library holds pointers into all of these.
        self._kept = (weights, cosines, sines)
        shape = _Config(
            config.num_layers,
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            self._vocab_size,
            block_size,
            config.sliding_window or 0,
            max_model_len,
            config.rms_norm_eps,
        )
        self._model = ctypes.c_void_p(library.ms_model_new(ctypes.byref(shape), num_threads))
        for index, layer in enumerate(weights.layers):
            linears = (NativeLinear * 4)(*map(native_linear, (layer.qkv, layer.o, layer.gate_up, layer.down)))
            library.ms_model_set_layer(
                self._model, index, _pointer(layer.input_norm), _pointer(layer.post_norm), linears
            )
        library.ms_model_set_ends(
            self._model,
            ctypes.byref(native_linear(weights.embedding)),
            ctypes.byref(native_linear(weights.head)),
            _pointer(weights.final_norm),
            _pointer(cosines),
            _pointer(sines),
            _pointer(self._kv),
            ctypes.c_int64(self._kv[0, 0].size),
        )

    def close(self) -> None:
        """End the threads and free what the library holds."""
        self._library.ms_model_delete(self._model)

    def copy(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            part = self._kv[:, :, copy.source, :, : copy.num_slots]  # [L, 2, G, slots, D]
            self._kv[:, :, copy.target, :, : copy.num_slots] = part

    def warm_up(self, num_tokens: int) -> None:
        """Compute `num_tokens` tokens in the first blocks, which nobody holds yet."""
        num_blocks = -(-num_tokens // self._kv.shape[4])
        table = np.arange(num_blocks, dtype=np.int32).reshape(1, -1)  # [1, blocks]
        ends = np.array([0, num_tokens], np.int32)
        self._step(np.zeros(num_tokens, np.int32), ends, ends[:1], table, ends[1:] - np.int32(1))

    def forward(self, batch: Batch) -> Floats:
        """Write the new tokens' KV and return the logits [S, V] of the rows that sample."""
        rows = batch.rows
        token_ids = np.array([token_id for row in rows for token_id in row.token_ids], np.int32)  # [T]
        first_token = np.zeros(len(rows) + 1, np.int32)  # [R + 1]
        np.cumsum([row.num_new for row in rows], out=first_token[1:])
        start = np.array([row.start for row in rows], np.int32)  # [R]
        max_blocks = max(len(row.seq.block_table) for row in rows)
        tables = np.zeros((len(rows), max_blocks), np.int32)  # [R, max_blocks]
        for index, row in enumerate(rows):
            tables[index, : len(row.seq.block_table)] = row.seq.block_table
        samples = first_token[1:][[row.samples for row in rows]] - np.int32(1)  # [S]
        return self._step(token_ids, first_token, start, tables, samples)

    def _step(self, token_ids: Ints, first_token: Ints, start: Ints, tables: Ints, samples: Ints) -> Floats:
        logits = np.empty((len(samples), self._vocab_size), np.float32)
        arrays = (token_ids, first_token, start, tables, samples, logits)
        sizes = (len(token_ids), len(start), len(samples), tables.shape[1])
        self._library.ms_model_step(self._model, ctypes.byref(_Batch(*sizes, *(array.ctypes.data for array in arrays))))
        return logits[:, : self._true_vocab_size]


def native_linear(linear: PackedLinear) -> NativeLinear:
    return NativeLinear(linear.packed.ctypes.data, linear.type, linear.rows, linear.columns)


def _pointer(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _tensor(array: Floats) -> torch.Tensor:
    return torch.from_numpy(array)
