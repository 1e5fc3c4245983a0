"""Owns the way from a batch to tensors. Makes no choices: the scheduler has made them."""

import torch
from torch import Tensor

from midstream.engine.attention.reference import RaggedAttention, RowContext
from midstream.engine.batch import Batch, Row
from midstream.engine.models.decoder import ModelInputs

CPU = torch.device("cpu")


def build_inputs(batch: Batch, block_size: int, device: torch.device = CPU) -> ModelInputs:
    """Lay the rows one after the other: T = sum of their new tokens."""
    token_ids: list[int] = []
    positions: list[Tensor] = []
    slot_mapping: list[Tensor] = []
    contexts: list[RowContext] = []
    sampling_indices: list[int] = []
    for row in batch.rows:
        end = row.end + len(row.drafts)
        slots = _slots(row, end, block_size)  # [C]
        contexts.append(RowContext(len(token_ids), len(token_ids) + end - row.start, slots.to(device)))
        token_ids += row.token_ids
        positions.append(torch.arange(row.start, end))
        slot_mapping.append(slots[row.start :])
        sampling_indices += range(len(token_ids) - row.num_logits, len(token_ids))
    return ModelInputs(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.cat(positions).to(device),
        attention=RaggedAttention(torch.cat(slot_mapping).to(device), contexts),
        sampling_indices=torch.tensor(sampling_indices, dtype=torch.int64, device=device),
    )


def _slots(row: Row, end: int, block_size: int) -> Tensor:
    """The slots of the row's sequence for positions [0, end)."""
    num_blocks = -(-end // block_size)
    table = torch.tensor(row.seq.block_table[:num_blocks])  # [blocks]
    slots = table.unsqueeze(1) * block_size + torch.arange(block_size)  # [blocks, B]
    return slots.flatten()[:end]
