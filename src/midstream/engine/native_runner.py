"""Owns the runner on the compiled CPU kernels. Gives what `runner.py` gives, within the kernels' stated tolerance."""

from midstream.engine.batch import Batch
from midstream.engine.kernels.cpu.native_model import NativeModel
from midstream.engine.step_logits import Sampling, StepLogits


class NativeRunner:
    """Runs a batch in one call into the library."""

    def __init__(self, model: NativeModel, *, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.model = model
        self._sampling = Sampling(vocab_size, eos_token_ids)

    def warm_up(self, num_tokens: int) -> None:
        """Run one throw-away batch of `num_tokens`, so that the first request pays for no page fault."""
        self.model.warm_up(num_tokens)

    def execute(self, batch: Batch) -> StepLogits:
        self.model.copy(batch.copies)
        return StepLogits(self.model.forward(batch), self._sampling)
