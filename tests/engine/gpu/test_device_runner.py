"""The device's runner against the plain one: the same tokens, however many rows share a pass."""

import pytest
import torch

from midstream.engine.batch import Batch, Row
from midstream.engine.gpu.decode_pass import PassShape
from midstream.engine.gpu.runner import DeviceRunner
from midstream.engine.kv_cache import KVCache
from midstream.engine.runner import TorchRunner
from midstream.engine.step_logits import Sampling
from midstream.modelfile.model_config import ModelConfig
from tests.engine.forward import make_decoder
from tests.engine.gpu.devices import DEVICES
from tests.engine.models import random_weights, tiny
from tests.engine.tiny import make_sequence

BLOCK_SIZE, NUM_BLOCKS = 4, 40
CONFIGS = {
    "llama": tiny(),
    "windows": tiny(sliding_window=5, sliding_layers=frozenset({0}), local_rope_theta=100.0),
}


def cache(config: ModelConfig, num_blocks: int, device: str) -> KVCache:
    return KVCache(
        num_layers=config.num_layers,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
        device=torch.device(device),
    )


def runners(config: ModelConfig, device: str) -> tuple[TorchRunner, DeviceRunner]:
    weights = random_weights(config)
    plain = TorchRunner(
        make_decoder(config, weights), cache(config, NUM_BLOCKS, "cpu"), vocab_size=90, eos_token_ids=(0,)
    )
    moved = {name: tensor.to(device) for name, tensor in weights.items()}
    fast = DeviceRunner(
        make_decoder(config, moved), cache(config, NUM_BLOCKS + 1, device), Sampling(90, (0,)), torch.device(device)
    )
    return plain, fast


def generate(runner: TorchRunner | DeviceRunner, lengths: list[int], num_steps: int) -> list[list[int]]:
    """Greedy tokens of sequences that are prefilled together and decoded together."""
    sequences, first = [], 0
    for request_id, length in enumerate(lengths):
        seq = make_sequence([(7 * i + length) % 90 for i in range(length)], request_id=request_id)
        num_blocks = -(-(length + num_steps) // BLOCK_SIZE)
        seq.block_table = list(range(first, first + num_blocks))
        first += num_blocks
        sequences.append(seq)
    for _ in range(num_steps):
        rows = [Row(seq, seq.num_computed_tokens, seq.num_pending) for seq in sequences]
        logits = runner.execute(Batch(rows, []))
        for index, row in enumerate(rows):
            token_id = logits.sample(index, row.seq)
            row.seq.num_computed_tokens += row.num_new
            row.seq.append_generated(token_id)
    return [seq.token_ids for seq in sequences]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("lengths", [[5], [1, 9, 4], [3, 3, 3, 3, 3]], ids=["alone", "three", "five"])
def test_it_generates_what_the_plain_runner_generates(device: str, config: ModelConfig, lengths: list[int]) -> None:
    plain, fast = runners(config, device)
    assert generate(fast, lengths, 12) == generate(plain, lengths, 12)


@pytest.mark.parametrize("device", DEVICES)
def test_drafts_are_checked_in_the_same_pass(device: str) -> None:
    plain, fast = runners(tiny(), device)
    [expected] = generate(plain, [6], 5)
    seq = make_sequence(expected[:6])
    seq.block_table = [0, 1, 2]
    logits = fast.execute(Batch([Row(seq, 0, 6, tuple(expected[6:9]))], []))
    for depth, token_id in enumerate(expected[6:10]):
        assert logits.sample(depth, seq) == token_id
        seq.append_generated(token_id)


def test_passes_have_few_shapes() -> None:
    seq = make_sequence(range(40))
    rows = [Row(seq, 39, 1)] * 5
    assert PassShape.holding(rows, BLOCK_SIZE, 160) == PassShape(8, 16, BLOCK_SIZE, 160)
    assert PassShape.holding(rows[:1], BLOCK_SIZE, 160).num_rows == 1
    assert PassShape.holding(rows * 60, BLOCK_SIZE, 160).num_rows == 300
