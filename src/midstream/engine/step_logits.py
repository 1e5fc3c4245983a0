"""Owns what a step hands back: logits that are sampled from one at a time. Computes no forward pass."""

import numpy as np
import numpy.typing as npt

from midstream.engine.sampler import SamplingRow, sample
from midstream.engine.sequence import Sequence
from midstream.engine.watch import Bitmask


class Sampling:
    """What is the same for every token that an engine samples: the vocabulary, its ends, the mask's memory."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.bitmask: Bitmask = np.zeros(-(-vocab_size // 32), dtype=np.int32)


class StepLogits:
    """One row of logits [V] for each token whose successor may be asked for, valid until the next step."""

    def __init__(self, logits: npt.NDArray[np.float32], sampling: Sampling) -> None:
        # A model may have more rows than its tokenizer has tokens: padding, which means nothing.
        self._logits = logits[:, : sampling.vocab_size]  # [S, V]
        self._sampling = sampling

    def sample(self, index: int, seq: Sequence) -> int:
        """The token after all of `seq`, from row `index`, under its grammar's mask."""
        return sample(self._logits[index], sampling_row(seq, self._sampling.bitmask, self._sampling.eos_token_ids))


def sampling_row(seq: Sequence, bitmask: Bitmask, eos_token_ids: tuple[int, ...]) -> SamplingRow:
    """What the sequence asks of the sampler; `bitmask` is the memory for its grammar's mask."""
    is_masked = seq.watch.fill_mask(bitmask)
    ends = (*eos_token_ids, *seq.sampling.stop_token_ids) if seq.num_generated < seq.sampling.min_tokens else ()
    return SamplingRow(seq.sampling, seq.num_tokens, bitmask if is_masked else None, seq.watch.banned_token_ids, ends)
