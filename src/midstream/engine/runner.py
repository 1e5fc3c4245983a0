"""Owns the device: the model, the KV tensors, the sampler's buffers. Decides neither what runs nor what it means."""

from typing import Protocol

import torch
from torch import Tensor

from midstream.engine.attention.reference import RaggedAttention, RowContext
from midstream.engine.batch import Batch
from midstream.engine.inputs import build_inputs
from midstream.engine.kv_cache import KVCache
from midstream.engine.models.decoder import ModelInputs
from midstream.engine.step_logits import Sampling, StepLogits


class TorchModel(Protocol):
    """A model in torch over the paged cache."""

    def forward(self, inputs: ModelInputs, cache: KVCache) -> Tensor:
        """Write the new tokens' KV and return the logits [S, V] of the rows that sample."""


class TorchRunner:
    """Runs a batch with the torch model: the path that works everywhere, and the reference for the faster ones."""

    def __init__(self, model: TorchModel, cache: KVCache, *, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.model = model
        self.cache = cache
        self._sampling = Sampling(vocab_size, eos_token_ids)

    def warm_up(self, num_tokens: int) -> None:
        """Run one throw-away batch of `num_tokens`: the first pass pays for page faults and library start-up.

        Writes KV to the first slots, which nobody holds yet.
        """
        positions = torch.arange(num_tokens)  # [T]
        attention = RaggedAttention(positions, [RowContext(0, num_tokens, positions)])
        self.model.forward(ModelInputs(torch.zeros_like(positions), positions, attention, positions[-1:]), self.cache)

    def execute(self, batch: Batch) -> StepLogits:
        return StepLogits(self.forward(batch).float().numpy(), self._sampling)

    def forward(self, batch: Batch) -> Tensor:
        """The logits [S, V] that the rows give; the KV of every row's new tokens is written."""
        self.cache.copy(batch.copies)
        return self.model.forward(build_inputs(batch, self.cache.block_size), self.cache)
