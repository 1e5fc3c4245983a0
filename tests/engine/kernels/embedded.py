"""Owns the embedded model on the kernels as tests drive it: greedy answers, and the logits after every token."""

import ctypes

import torch
from torch import Tensor

from midstream.engine.batch import Batch, Row
from midstream.engine.kernels.cpu.native_model import NativeModel, Sizes
from midstream.engine.weights.load import open_weights
from midstream.engine.weights.packed import load_packed
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.resolve import ModelFiles
from tests.engine.tiny import make_sequence

BLOCK_SIZE, MAX_LEN, MAX_SEQS = 16, 320, 32
BLOCKS_A_SEQUENCE = MAX_LEN // BLOCK_SIZE
SIZES = Sizes(
    num_blocks=MAX_SEQS * BLOCKS_A_SEQUENCE,
    block_size=BLOCK_SIZE,
    max_model_len=MAX_LEN,
    max_num_seqs=MAX_SEQS,
    max_num_batched_tokens=1024,
    num_threads=2,
)


class Embedded:
    def __init__(self, library: ctypes.CDLL, files: ModelFiles, config: ModelConfig) -> None:
        self._model = NativeModel(library, config, load_packed(open_weights(files, config), config), SIZES)

    def close(self) -> None:
        self._model.close()

    def greedy(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """The best `num_tokens` after each prompt, all computed side by side."""
        rows = [_row(prompt, i * BLOCKS_A_SEQUENCE) for i, prompt in enumerate(prompts)]
        for _ in range(num_tokens):
            best = self._model.forward(Batch(rows, [])).argmax(axis=1)
            for row, token_id in zip(rows, best, strict=True):
                row.seq.token_ids.append(int(token_id))
            rows = [Row(row.seq, row.end, 1) for row in rows]
        return [row.seq.token_ids[row.seq.num_prompt_tokens :] for row in rows]

    def logits(self, token_ids: list[int]) -> Tensor:
        """After every token: [T, V]. All but the first go as drafts, whose logits a pass gives too."""
        row = _row(token_ids[:1], 0, drafts=tuple(token_ids[1:]))
        return torch.from_numpy(self._model.forward(Batch([row], [])).copy())


def _row(token_ids: list[int], first_block: int, drafts: tuple[int, ...] = ()) -> Row:
    seq = make_sequence(token_ids)
    seq.block_table = list(range(first_block, first_block + BLOCKS_A_SEQUENCE))
    return Row(seq, 0, len(token_ids), drafts)
