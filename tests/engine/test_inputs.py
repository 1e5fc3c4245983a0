"""From a batch to tensors: where each row stands, and which slots it reads and writes."""

from midstream.engine.attention.reference import RaggedAttention, RowContext
from midstream.engine.batch import Batch, Row
from midstream.engine.inputs import build_inputs
from midstream.engine.models.decoder import ModelInputs
from tests.engine.tiny import make_sequence


def rows_of(inputs: ModelInputs) -> list[RowContext]:
    assert isinstance(inputs.attention, RaggedAttention)
    return inputs.attention.rows


def test_rows_lie_one_after_the_other_each_at_its_own_positions_and_slots() -> None:
    decoding, prefilling = make_sequence(range(10, 16)), make_sequence(range(20, 29))
    decoding.block_table, prefilling.block_table = [3, 0], [2, 5, 1]
    batch = Batch([Row(decoding, 5, 1), Row(prefilling, 2, 4)], [])
    inputs = build_inputs(batch, block_size=4)
    assert inputs.token_ids.tolist() == [15, 22, 23, 24, 25]
    assert inputs.positions.tolist() == [5, 2, 3, 4, 5]
    assert inputs.attention.slot_mapping.tolist() == [1, 10, 11, 20, 21]
    first, second = rows_of(inputs)
    assert (first.query_start, first.query_end) == (0, 1)
    assert first.slots.tolist() == [12, 13, 14, 15, 0, 1]
    assert (second.query_start, second.query_end) == (1, 5)
    assert second.slots.tolist() == [8, 9, 10, 11, 20, 21]
    assert inputs.sampling_indices.tolist() == [0], "a chunk that is not the last samples nothing"


def test_a_row_that_reaches_the_last_token_samples_from_it() -> None:
    first, second = make_sequence(range(3)), make_sequence(range(5))
    first.block_table, second.block_table = [0], [1, 2]
    inputs = build_inputs(Batch([Row(first, 0, 3), Row(second, 1, 4)], []), block_size=4)
    assert inputs.sampling_indices.tolist() == [2, 6]


def test_a_batch_in_which_nobody_samples_is_still_one() -> None:
    seq = make_sequence(range(5))
    seq.block_table = [0]
    inputs = build_inputs(Batch([Row(seq, 0, 2)], []), block_size=4)
    assert inputs.sampling_indices.tolist() == []
    assert str(inputs.sampling_indices.dtype) == "torch.int64"


def test_blocks_that_are_reserved_for_later_tokens_are_not_read() -> None:
    seq = make_sequence(range(3))
    seq.block_table = [0, 7]
    [row] = rows_of(build_inputs(Batch([Row(seq, 0, 3)], []), block_size=2))
    assert row.slots.tolist() == [0, 1, 14]


def test_a_block_of_one_slot_is_a_block() -> None:
    seq = make_sequence(range(3))
    seq.block_table = [4, 2, 9]
    inputs = build_inputs(Batch([Row(seq, 1, 2)], []), block_size=1)
    assert inputs.attention.slot_mapping.tolist() == [2, 9]
    assert rows_of(inputs)[0].slots.tolist() == [4, 2, 9]
