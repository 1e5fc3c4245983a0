"""Owns the running of token sequences through a decoder, step by step, with the engine's own blocks and batches."""

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from midstream.engine.batch import Batch, Row
from midstream.engine.blocks import BlockPool
from midstream.engine.inputs import build_inputs
from midstream.engine.kv_cache import KVCache, KVShape
from midstream.engine.models.decoder import Decoder, Weights
from midstream.engine.runner import TorchModel
from midstream.modelfile.model_config import ModelConfig
from tests.engine.tiny import make_sequence


def make_decoder(config: ModelConfig, weights: Weights, max_model_len: int = 128) -> Decoder:
    return Decoder(config, dict(weights), max_model_len=max_model_len)


class ShapedModel(TorchModel, Protocol):
    """A model that is no decoder of ours says itself what its keys and values take."""

    kv_shape: KVShape


class Forward:
    """Sequences in one KV cache. Blocks are handed out in turns, so that no table is a plain range."""

    def __init__(
        self,
        model: Decoder | ShapedModel,
        sequences: Items[list[int]],
        *,
        block_size: int = 4,
        kv_dtype: torch.dtype = torch.float32,
    ) -> None:
        num_blocks = sum(-(-len(token_ids) // block_size) for token_ids in sequences) + 3
        shape = KVShape.of(model.config) if isinstance(model, Decoder) else model.kv_shape
        self._model = model
        self._pool = BlockPool(num_blocks, block_size)
        self._cache = KVCache(
            num_layers=shape.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=kv_dtype,
        )
        self._sequences = [make_sequence(token_ids, request_id=i) for i, token_ids in enumerate(sequences)]
        self._logits: list[list[Tensor]] = [[] for _ in sequences]

    def step(self, num_new: Items[int]) -> None:
        """Compute the next `num_new[i]` tokens of sequence i, all in one batch."""
        rows = []
        for seq, n in zip(self._sequences, num_new, strict=True):
            if n > 0:
                assert self._pool.allocate(seq, n)
                rows.append(Row(seq, seq.num_computed_tokens, n))
        inputs = build_inputs(Batch(rows, []), self._pool.block_size)
        everywhere = torch.arange(len(inputs.token_ids))
        logits = self._model.forward(replace(inputs, sampling_indices=everywhere), self._cache)  # [T, V]
        for row, part in zip(rows, torch.split(logits, [row.num_new for row in rows]), strict=True):
            self._logits[row.seq.request_id].append(part)
            row.seq.num_computed_tokens += row.num_new

    def run(self, chunk_sizes: Items[int]) -> list[Tensor]:
        """Compute everything, sequence i in chunks of `chunk_sizes[i]`; returns the logits [tokens, V] of each."""
        while any(seq.num_pending for seq in self._sequences):
            self.step([min(n, seq.num_pending) for n, seq in zip(chunk_sizes, self._sequences, strict=True)])
        return [torch.cat(parts) for parts in self._logits]
