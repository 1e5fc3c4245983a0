"""Owns the device: the model, the KV tensors, the sampler's buffers. Decides neither what runs nor what it means."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from midstream.engine.attention.metadata import AttentionMetadata, RowContext
from midstream.engine.batch import Batch, Row
from midstream.engine.inputs import build_inputs
from midstream.engine.kv_cache import KVCache
from midstream.engine.models.decoder import ModelInputs
from midstream.engine.sampler import SamplingRow, sample


class TorchModel(Protocol):
    """A model in torch over the paged cache."""

    def forward(self, inputs: ModelInputs, cache: KVCache) -> Tensor:
        """Write the new tokens' KV and return the logits [S, V] of the rows that sample."""


class TorchRunner:
    """Runs a batch with the torch model: the path that works everywhere, and the reference for the faster ones."""

    def __init__(self, model: TorchModel, cache: KVCache, *, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.model = model
        self.cache = cache
        self.eos_token_ids = eos_token_ids
        self.vocab_size = vocab_size

    def warm_up(self, num_tokens: int) -> None:
        """Run one throw-away batch of `num_tokens`: the first pass pays for page faults and library start-up.

        Writes KV to the first slots, which nobody holds yet.
        """
        positions = torch.arange(num_tokens)  # [T]
        attention = AttentionMetadata(positions, [RowContext(0, num_tokens, positions)])
        self.model.forward(ModelInputs(torch.zeros_like(positions), positions, attention, positions[-1:]), self.cache)

    def execute(self, batch: Batch) -> list[int]:
        return sample_batch(batch, self.forward(batch), vocab_size=self.vocab_size, eos_token_ids=self.eos_token_ids)

    def forward(self, batch: Batch) -> Tensor:
        """The logits [S, V] of `batch.sampling_rows`; the KV of every row's new tokens is written."""
        self.cache.copy(batch.copies)
        return self.model.forward(build_inputs(batch, self.cache.block_size), self.cache)


def sample_batch(batch: Batch, logits: Tensor, *, vocab_size: int, eos_token_ids: tuple[int, ...]) -> list[int]:
    """One token for each of `batch.sampling_rows` from their logits [S, V], under their grammars' masks."""
    mask_words = -(-vocab_size // 32)
    rows = [sampling_row(row, mask_words, eos_token_ids) for row in batch.sampling_rows]
    # A model may have more rows than its tokenizer has tokens: padding, which means nothing.
    return sample(logits[:, :vocab_size], rows)


def sampling_row(row: Row, mask_words: int, eos_token_ids: tuple[int, ...]) -> SamplingRow:
    """What the row's sequence asks of the sampler, its grammar's mask ([mask_words] int32) included."""
    seq = row.seq
    bitmask = np.zeros(mask_words, dtype=np.int32)
    is_masked = seq.watch.fill_mask(bitmask)
    ends = (*eos_token_ids, *seq.sampling.stop_token_ids) if seq.num_generated < seq.sampling.min_tokens else ()
    return SamplingRow(seq.sampling, seq.num_tokens, bitmask if is_masked else None, seq.watch.banned_token_ids, ends)
