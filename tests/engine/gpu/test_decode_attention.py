"""Attention of a whole decode batch against the reference, one row at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.engine.attention.decode import DecodeAttention
from midstream.engine.attention.reference import RaggedAttention, RowContext
from tests.engine.gpu.devices import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(
    contexts=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    block_size=st.sampled_from([1, 3, 16]),
    groups=st.sampled_from([(1, 1), (2, 1), (6, 2)]),
    window=st.none() | st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_a_batch_gives_what_its_rows_give_alone(
    device: str, contexts: list[int], block_size: int, groups: tuple[int, int], window: int | None, seed: int
) -> None:
    dice = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = groups
    num_blocks = [-(-context // block_size) for context in contexts]
    free = torch.randperm(sum(num_blocks) + 2, generator=dice).tolist()
    tables = torch.zeros(len(contexts), max(num_blocks), dtype=torch.int64)
    rows = []
    for index, (context, count) in enumerate(zip(contexts, num_blocks, strict=True)):
        blocks = torch.tensor([free.pop() for _ in range(count)])
        tables[index, :count] = blocks
        slots = (blocks.unsqueeze(1) * block_size + torch.arange(block_size)).flatten()[:context]
        rows.append(RowContext(index, index + 1, slots))
    num_slots = (sum(num_blocks) + 2) * block_size
    query = torch.randn(len(contexts), num_heads, 8, generator=dice)
    keys, values = torch.randn(2, num_slots, num_kv_heads, 8, generator=dice)
    unused = torch.zeros(0, dtype=torch.int64)
    expected = RaggedAttention(unused, rows).attend(query, keys, values, scale=0.3, sliding_window=window)
    plan = DecodeAttention(unused.to(device), tables.to(device), torch.tensor(contexts, device=device), block_size)
    got = plan.attend(*(part.to(device) for part in (query, keys, values)), scale=0.3, sliding_window=window)
    torch.testing.assert_close(got.cpu(), expected, atol=1e-4, rtol=1e-4)
