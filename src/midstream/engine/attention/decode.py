"""Owns attention of one query a row: all rows at once, in shapes that do not follow the contexts."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class DecodeAttention:
    """Contexts by block table. A row of padding has a context of 1 and writes where nobody reads."""

    slot_mapping: Tensor  # [R] int64, where each row's key and value go
    block_tables: Tensor  # [R, M] int64; entries beyond a row's context may be any block
    context_lengths: Tensor  # [R] int64, the row's own token included
    block_size: int

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, *, scale: float, sliding_window: int | None
    ) -> Tensor:
        """query [R, H, D]; keys and values [N * B, G, D]; returns [R, H, D]. What `paged_attention` gives."""
        k, v = (self._gather(cache).to(query.dtype) for cache in (keys, values))  # [R, G, M * B, D] each
        positions = torch.arange(k.shape[2], device=query.device)  # [M * B]
        lengths = self.context_lengths.unsqueeze(1)  # [R, 1]
        mask = positions < lengths  # [R, M * B]
        if sliding_window is not None:
            mask = mask & (positions >= lengths - sliding_window)
        attended = F.scaled_dot_product_attention(
            query.unsqueeze(2), k, v, attn_mask=mask[:, None, None], scale=scale, enable_gqa=True
        )  # [R, H, 1, D]
        return attended.squeeze(2)

    def _gather(self, cache: Tensor) -> Tensor:
        blocks = cache.view(-1, self.block_size, *cache.shape[1:])[self.block_tables]  # [R, M, B, G, D]
        return blocks.flatten(1, 2).transpose(1, 2)  # [R, G, M * B, D]
