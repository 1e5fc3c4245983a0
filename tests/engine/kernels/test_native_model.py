"""The embedded model on the kernels: near the fp32 reference, and the same bits whatever shares the batch."""

import ctypes
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from midstream.engine.attention.reference import RaggedAttention, RowContext
from midstream.engine.batch import Batch, Row
from midstream.engine.blocks import BlockCopy
from midstream.engine.detokenizer import Detokenizer
from midstream.engine.kernels.cpu.native_model import PARTS, NativeModel, Sizes
from midstream.engine.kv_cache import KVCache
from midstream.engine.models.decoder import Decoder, ModelInputs
from midstream.engine.sequence import Sequence
from midstream.engine.watch import PlainWatch
from midstream.engine.weights.load import load_weights, open_weights
from midstream.engine.weights.packed import load_packed, unpackable
from midstream.messages import AddRequest, SamplingParams
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.resolve import ModelFiles
from midstream.modelfile.tokenizer import Tokenizer

pytestmark = pytest.mark.model

Floats = npt.NDArray[np.float32]
TEXT = (
    "<|im_start|>user\nWhat is the capital of France, and what is it known for?<|im_end|>\n<|im_start|>assistant\n"
    "The capital of France is Paris. It is known for its museums, its food and the Eiffel Tower."
)
NUM_BLOCKS, BLOCK_SIZE, MAX_LEN = 64, 16, 512
SIZES = Sizes(
    num_blocks=NUM_BLOCKS,
    block_size=BLOCK_SIZE,
    max_model_len=MAX_LEN,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    num_threads=2,
)


@pytest.fixture(scope="module")
def model(library: ctypes.CDLL, files: ModelFiles, config: ModelConfig) -> Iterator[NativeModel]:
    assert unpackable(config) is None
    model = NativeModel(library, config, load_packed(open_weights(files, config), config), SIZES)
    yield model
    model.close()


def sequence(token_ids: list[int], first_block: int) -> Sequence:
    seq = Sequence(AddRequest(1, token_ids, SamplingParams(max_tokens=1)), PlainWatch(), Detokenizer([]))
    seq.block_table = list(range(first_block, first_block + -(-len(token_ids) // BLOCK_SIZE)))
    return seq


def logits(model: NativeModel, *rows: Row, copies: tuple[BlockCopy, ...] = ()) -> Floats:
    model.copy(list(copies))
    return model.forward(Batch(list(rows), list(copies))).copy()


def test_its_predictions_are_near_those_of_fp32(
    model: NativeModel, files: ModelFiles, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode_frames(TEXT)
    decoder = Decoder(config, load_weights(files, config, torch.float32), max_model_len=MAX_LEN)
    cache = KVCache(
        num_layers=config.num_layers,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
    )
    positions = torch.arange(len(token_ids))
    attention = RaggedAttention(positions, [RowContext(0, len(token_ids), positions)])
    exact = decoder.forward(ModelInputs(torch.tensor(token_ids), positions, attention, positions), cache)  # [T, V]
    ours = torch.cat(
        [
            torch.from_numpy(logits(model, Row(sequence(token_ids[: end + 1], 0), end, 1)))
            for end in range(len(token_ids))
        ]
    )  # [T, V]
    p, q = torch.log_softmax(exact, -1), torch.log_softmax(ours, -1)
    divergence = (p.exp() * (p - q)).sum(-1).mean().item()
    assert divergence < 0.01
    assert (p.argmax(-1) == q.argmax(-1)).float().mean().item() > 0.9


def test_a_rows_logits_are_the_same_bits_alone_in_a_batch_and_however_prefill_is_cut(
    model: NativeModel, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode_frames(TEXT)
    length = len(token_ids)
    whole = logits(model, Row(sequence(token_ids, 0), 0, length))[0]
    for cut in (1, 5, 16, 31, length - 1):
        assert logits(model, Row(sequence(token_ids, 10), 0, cut)).shape[0] == 0, (
            "a chunk before the end samples nothing"
        )
        others = [Row(sequence(token_ids[:n], 20 + 4 * i), 0, n) for i, n in enumerate((3, 17, 40))]
        together = logits(model, others[0], Row(sequence(token_ids, 10), cut, length - cut), *others[1:])
        assert np.array_equal(together[1], whole), f"cut at {cut}"


def test_a_copied_part_of_a_block_is_as_good_as_a_computed_one(model: NativeModel, tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode_frames(TEXT)
    whole = logits(model, Row(sequence(token_ids, 0), 0, len(token_ids)))[0]
    shared = sequence(token_ids, 0)
    shared.block_table = [0, 1, 40, 41, 42]
    rest = Row(shared, 2 * BLOCK_SIZE + 5, len(token_ids) - 2 * BLOCK_SIZE - 5)
    assert np.array_equal(logits(model, rest, copies=(BlockCopy(2, 40, 5),))[0], whole)


def test_the_parts_of_a_step_are_timed_only_while_somebody_asks(model: NativeModel, tokenizer: Tokenizer) -> None:
    row = Row(sequence(tokenizer.encode_frames(TEXT), 0), 0, 5)
    with model.timed() as parts:
        logits(model, row)
    assert list(parts) == list(PARTS)
    assert parts["gate and up"] > 0
    before = dict(parts)
    logits(model, row)
    assert parts == before
