"""Owns a decode pass of one fixed shape: padded, and on CUDA recorded once and replayed from then on."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from midstream.engine.attention.decode import DecodeAttention
from midstream.engine.batch import Row
from midstream.engine.models.decoder import ModelInputs

Forward = Callable[[ModelInputs], Tensor]

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class PassShape:
    num_rows: int  # R
    num_blocks: int  # M, of the longest context
    block_size: int
    padding_slot: int
    """Where rows of padding write; nobody reads it."""

    @classmethod
    def holding(cls, rows: list[Row], block_size: int, padding_slot: int) -> "PassShape":
        """The least shape of the few that are used which holds `rows`."""
        num_rows = next((size for size in _BATCH_BUCKETS if size >= len(rows)), len(rows))
        num_blocks = max(-(-row.end // block_size) for row in rows)
        return cls(num_rows, 1 << (num_blocks - 1).bit_length(), block_size, padding_slot)


class DecodePass:
    """Runs rows of one token each. Its inputs lie at fixed addresses, where the recorded graph reads them."""

    def __init__(self, forward: Forward, shape: PassShape, device: torch.device, *, records: bool) -> None:
        self._shape = shape
        self._host = torch.zeros((shape.num_rows, 4 + shape.num_blocks), dtype=torch.int64, pin_memory=records)
        self._device = torch.zeros_like(self._host, device=device)  # [R, 4 + M]
        self._fill([])
        token_ids, positions, slots, lengths = self._device[:, :4].unbind(1)  # [R] each, views
        attention = DecodeAttention(slots, self._device[:, 4:], lengths, shape.block_size)
        inputs = ModelInputs(token_ids, positions, attention, torch.arange(shape.num_rows, device=device))
        self._run = _recorded(forward, inputs) if records else lambda: forward(inputs)

    def run(self, rows: list[Row]) -> Tensor:
        """The logits [rows, V], on the device, valid until the next run."""
        self._fill(rows)
        return self._run()[: len(rows)]

    def _fill(self, rows: list[Row]) -> None:
        shape = self._shape
        self._host.zero_()
        self._host[:, 2], self._host[:, 3] = shape.padding_slot, 1
        for index, row in enumerate(rows):
            table, position = row.seq.block_table[: shape.num_blocks], row.start
            slot = table[position // shape.block_size] * shape.block_size + position % shape.block_size
            self._host[index, :4] = torch.tensor([*row.token_ids, position, slot, position + 1])
            self._host[index, 4 : 4 + len(table)] = torch.tensor(table)
        self._device.copy_(self._host, non_blocking=True)


def _recorded(forward: Forward, inputs: ModelInputs) -> Callable[[], Tensor]:
    """The pass as a CUDA graph. Source: pytorch.org, "CUDA semantics", whole-network capture."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries set themselves up outside of the recording
            forward(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = forward(inputs)

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay
