"""Sampling of a whole batch on the device against the sampler that takes one row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.engine.gpu.sampler import sample_on_device
from midstream.engine.sampler import SamplingRow, sample
from midstream.messages import SamplingParams
from tests.engine.gpu.devices import DEVICES

V = 70


@st.composite
def sampling_rows(draw: st.DrawFn) -> SamplingRow:
    params = SamplingParams(
        max_tokens=1,
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 5, 200])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.3])),
        min_p=draw(st.sampled_from([0.0, 0.05, 1.0])),
        seed=draw(st.integers(0, 1000)),
    )
    allowed = draw(st.none() | st.sets(st.integers(0, V - 1), min_size=1))
    bitmask = None
    if allowed is not None:
        bits = np.zeros(96, np.uint8)
        bits[list(allowed)] = 1
        bitmask = np.packbits(bits, bitorder="little").view(np.int32)
    ends = draw(st.sampled_from([(), (3,), (3, 4, 500)]))
    return SamplingRow(params, draw(st.integers(0, 500)), bitmask, (), ends)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=300, deadline=None)
@given(st.lists(sampling_rows(), min_size=1, max_size=6), st.integers(0, 2**31))
def test_a_batch_samples_what_its_rows_sample(device: str, rows: list[SamplingRow], seed: int) -> None:
    logits = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed)) * 3
    got = sample_on_device(logits.to(device), rows).tolist()
    assert got == [sample(row_logits.numpy(), row) for row_logits, row in zip(logits, rows, strict=True)]


def test_a_banned_token_never_comes() -> None:
    logits = torch.zeros(1, V)
    logits[0, 7] = 50.0
    row = SamplingRow(SamplingParams(max_tokens=1, temperature=0), 0, None, (7, V + 5))
    assert sample_on_device(logits, [row]).tolist() == [0]
