"""Owns the runner on the compiled CPU kernels. Gives what `runner.py` gives, within the kernels' stated tolerance."""

import torch

from midstream.engine.batch import Batch
from midstream.engine.kernels.cpu.native_model import NativeModel
from midstream.engine.runner import sample_batch


class NativeRunner:
    """Runs a batch in one call into the library, then samples."""

    def __init__(self, model: NativeModel, *, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.model = model
        self.eos_token_ids = eos_token_ids
        self.vocab_size = vocab_size

    def warm_up(self, num_tokens: int) -> None:
        """Run one throw-away batch of `num_tokens`, so that the first request pays for no page fault."""
        self.model.warm_up(num_tokens)

    def execute(self, batch: Batch) -> list[int]:
        self.model.copy(batch.copies)
        logits = torch.from_numpy(self.model.forward(batch))  # [S, V]
        return sample_batch(batch, logits, vocab_size=self.vocab_size, eos_token_ids=self.eos_token_ids)
