"""Owns a short check that a CUDA device computes what the CPU does. Imports torch; asks nothing of a model."""

import torch

from midstream.engine.attention.decode import DecodeAttention

_TOLERANCE = 0.02


def gpu_name() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def check_gpu() -> str | None:
    """What is wrong, in words; None when paged attention in bf16 comes out as the CPU has it in fp32."""
    dice = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(size, generator=dice) for size in ((3, 8, 64), (64, 2, 64), (64, 2, 64)))
    tables, lengths = torch.tensor([[0, 1], [2, 3], [1, 0]]), torch.tensor([17, 32, 5])

    def attend(device: str, dtype: torch.dtype) -> torch.Tensor:
        plan = DecodeAttention(lengths.to(device), tables.to(device), lengths.to(device), 16)
        moved = (tensor.to(device, dtype) for tensor in (query, keys, values))
        return plan.attend(*moved, scale=0.125, sliding_window=None).float().cpu()

    try:
        worst = float((attend("cuda", torch.bfloat16) - attend("cpu", torch.float32)).abs().max())
    except RuntimeError as error:
        return f"it fails: {error}"
    return None if worst < _TOLERANCE else f"attention is {worst:.3f} off; {_TOLERANCE} is allowed"
