"""Owns the KV tensors. Knows slots and blocks, never sequences."""

from dataclasses import dataclass

import torch
from torch import Tensor

from midstream.engine.blocks import BlockCopy
from midstream.modelfile.model_config import ModelConfig


@dataclass(frozen=True)
class KVShape:
    """What one token's keys and values take, and how many tokens the model was made for."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_positions: int

    @classmethod
    def of(cls, config: ModelConfig) -> "KVShape":
        return cls(config.num_layers, config.num_kv_heads, config.head_dim, config.max_position_embeddings)

    @property
    def num_values(self) -> int:
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim


class KVCache:
    """Keys and values of all layers in one allocation that is taken at start and never grows.

    A slot is one token's place: slot = block_id * B + offset in the block.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        shape = (num_layers, 2, num_blocks * block_size, num_kv_heads, head_dim)
        self._slots = torch.zeros(shape, dtype=dtype, device=device)  # [L, 2, N * B, G, D]

    def keys(self, layer: int) -> Tensor:
        return self._slots[layer, 0]  # [N * B, G, D]

    def values(self, layer: int) -> Tensor:
        return self._slots[layer, 1]  # [N * B, G, D]

    def copy(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            source = copy.source * self.block_size
            target = copy.target * self.block_size
            part = self._slots[:, :, source : source + copy.num_slots]  # [L, 2, slots, G, D]
            self._slots[:, :, target : target + copy.num_slots] = part
