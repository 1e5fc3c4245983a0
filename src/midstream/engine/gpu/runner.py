"""Owns the runner on a CUDA device. Gives what `engine/runner.py` gives, as far as bf16 does."""

import torch
from torch import Tensor

from midstream.engine.attention.reference import RaggedAttention, RowContext
from midstream.engine.batch import Batch
from midstream.engine.gpu.decode_pass import DecodePass, PassShape
from midstream.engine.gpu.sampler import sample_on_device
from midstream.engine.inputs import build_inputs
from midstream.engine.kv_cache import KVCache
from midstream.engine.models.decoder import ModelInputs
from midstream.engine.runner import TorchModel
from midstream.engine.sampler import sample
from midstream.engine.sequence import Sequence
from midstream.engine.step_logits import Sampling, sampling_row


class DeviceLogits:
    """One step's logits, where they are; each row's own token is sampled there, all in one transfer."""

    def __init__(self, logits: Tensor, batch: Batch, sampling: Sampling) -> None:
        self._logits = logits[:, : sampling.vocab_size]  # [S, V]
        self._sampling = sampling
        rows = batch.sampling_rows
        firsts, index = [], 0
        for row in rows:
            firsts.append(index)
            index += row.num_logits
        # Masks are made here, on the CPU, while the device still runs the pass that was only started.
        asked = [sampling_row(row.seq, sampling.bitmask.copy(), sampling.eos_token_ids) for row in rows]
        tokens = sample_on_device(self._logits[firsts], asked).tolist() if rows else []
        self._tokens: dict[int, int] = dict(zip(firsts, tokens, strict=True))

    def sample(self, index: int, seq: Sequence) -> int:
        """The token after all of `seq`, from row `index`; after a draft that came true the CPU samples it."""
        if index in self._tokens:
            return self._tokens[index]
        row = sampling_row(seq, self._sampling.bitmask, self._sampling.eos_token_ids)
        return sample(self._logits[index].float().cpu().numpy(), row)


class DeviceRunner:
    """Decode passes in fixed shapes, everything else as it comes. The cache's last block belongs to padding."""

    def __init__(self, model: TorchModel, cache: KVCache, sampling: Sampling, device: torch.device) -> None:
        self.model = model
        self.cache = cache
        self._sampling = sampling
        self._device = device
        self._passes: dict[PassShape, DecodePass] = {}

    def warm_up(self, num_tokens: int) -> None:
        """Run one throw-away batch of `num_tokens` in the first slots, which nobody holds yet."""
        positions = torch.arange(num_tokens, device=self._device)  # [T]
        attention = RaggedAttention(positions, [RowContext(0, num_tokens, positions)])
        self._forward(ModelInputs(torch.zeros_like(positions), positions, attention, positions[-1:]))

    def execute(self, batch: Batch) -> DeviceLogits:
        return DeviceLogits(self.forward(batch), batch, self._sampling)

    def forward(self, batch: Batch) -> Tensor:
        """The logits [S, V] that the rows give, on the device."""
        self.cache.copy(batch.copies)
        if all(row.num_logits == 1 and row.num_new == 1 for row in batch.rows):
            shape = PassShape.holding(batch.rows, self.cache.block_size, self.cache.num_slots - 1)
            if shape not in self._passes:
                records = self._device.type == "cuda"
                self._passes[shape] = DecodePass(self._forward, shape, self._device, records=records)
            return self._passes[shape].run(batch.rows)
        return self._forward(build_inputs(batch, self.cache.block_size, self._device))

    def _forward(self, inputs: ModelInputs) -> Tensor:
        return self.model.forward(inputs, self.cache)
