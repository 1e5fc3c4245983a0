"""What a row asks of the sampler, and what a runner computes."""

import numpy as np
import pytest
import torch

from midstream.engine.batch import Batch, Row
from midstream.engine.blocks import BlockCopy
from midstream.engine.detokenizer import Detokenizer
from midstream.engine.kv_cache import KVCache
from midstream.engine.runner import TorchRunner
from midstream.engine.sequence import Sequence
from midstream.engine.step_logits import sampling_row
from midstream.engine.watch import Bitmask, PlainWatch
from midstream.messages import AddRequest
from tests.engine.forward import make_decoder
from tests.engine.models import random_weights, tiny
from tests.engine.tiny import TOKEN_BYTES, greedy, make_sequence

ENDS = (0, 9)


class MaskingWatch(PlainWatch):
    banned_token_ids = (7,)

    def fill_mask(self, bitmask: Bitmask) -> bool:
        bitmask[:] = (0, 5)
        return True


def sequence(num_generated: int, watch: PlainWatch | None = None) -> Sequence:
    params = greedy(20, min_tokens=2, stop_token_ids=(4,))
    seq = Sequence(AddRequest(1, [1, 2, 3], params), watch or PlainWatch(), Detokenizer(TOKEN_BYTES))
    for _ in range(num_generated):
        seq.append_generated(5)
    return seq


@pytest.mark.parametrize(("num_generated", "premature"), [(0, (0, 9, 4)), (1, (0, 9, 4)), (2, ())])
def test_every_end_is_premature_until_min_tokens(num_generated: int, premature: tuple[int, ...]) -> None:
    seq = sequence(num_generated)
    row = sampling_row(seq, np.zeros(2, np.int32), ENDS)
    assert tuple(row.premature_token_ids) == premature
    assert row.position == 3 + num_generated
    assert row.bitmask is None
    assert row.banned_token_ids == ()


def test_the_watch_says_what_is_allowed_and_what_is_banned() -> None:
    seq = sequence(0, MaskingWatch())
    row = sampling_row(seq, np.full(2, -1, np.int32), ENDS)
    assert row.bitmask is not None
    np.testing.assert_array_equal(row.bitmask, np.array([0, 5], np.int32))
    assert row.banned_token_ids == (7,)


@pytest.fixture
def runner() -> TorchRunner:
    config = tiny()
    cache = KVCache(num_layers=2, num_blocks=8, block_size=4, num_kv_heads=2, head_dim=8, dtype=torch.float32)
    return TorchRunner(make_decoder(config, random_weights(config)), cache, vocab_size=90, eos_token_ids=(0,))


def test_a_step_gives_a_token_for_each_row_that_reaches_its_end(runner: TorchRunner) -> None:
    first, second, third = (make_sequence(range(n), request_id=n) for n in (5, 6, 3))
    first.block_table, second.block_table, third.block_table = [0, 1], [2, 3], [4]
    batch = Batch([Row(first, 0, 5), Row(second, 0, 2), Row(third, 0, 3)], [])
    assert len(runner.forward(batch)) == 2


def test_copies_run_before_anything_is_written(runner: TorchRunner) -> None:
    donor, heir = make_sequence([1, 2, 3, 4]), make_sequence([1, 2, 8, 9])
    donor.block_table, heir.block_table = [0], [1]
    runner.forward(Batch([Row(donor, 0, 4)], []))
    # The donor's block goes to another sequence in the very step that copies from it.
    other = make_sequence([50, 51, 52, 53])
    other.block_table = [0]
    reused = runner.forward(Batch([Row(other, 0, 4), Row(heir, 2, 2)], [BlockCopy(0, 1, 2)]))[1]
    fresh = make_sequence([1, 2, 8, 9])
    fresh.block_table = [5]
    [computed] = runner.forward(Batch([Row(fresh, 0, 4)], []))
    assert torch.allclose(reused, computed, atol=1e-5)


def test_a_warm_up_takes_any_number_of_tokens_that_fits_the_context(runner: TorchRunner) -> None:
    for num_tokens in (1, 32):
        runner.warm_up(num_tokens)
