"""Owns rotary position embedding: the tables and the rotation. Source: RoFormer, arXiv:2104.09864."""

import math

import torch
from torch import Tensor

from midstream.modelfile.model_config import ModelConfig, RopeKind, RopeScaling


class RotaryEmbedding:
    """cos and sin for every position of the context, computed once in float64 and kept in float32."""

    def __init__(self, frequencies: Tensor, max_positions: int) -> None:
        """`frequencies` [D / 2] float64, radians a position."""
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), frequencies)  # [positions, D / 2]
        self.cos = angles.cos().float().repeat(1, 2)  # [positions, D]
        self.sin = angles.sin().float().repeat(1, 2)  # [positions, D]

    def to(self, device: torch.device) -> "RotaryEmbedding":
        """Move the tables, in place."""
        self.cos, self.sin = self.cos.to(device), self.sin.to(device)
        return self

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x [T, heads, D] by its positions [T]; the halves of D are the pairs."""
        cos = self.cos[positions].unsqueeze(1).to(x.dtype)  # [T, 1, D]
        sin = self.sin[positions].unsqueeze(1).to(x.dtype)  # [T, 1, D]
        first, second = x.chunk(2, dim=-1)  # [T, heads, D / 2] each
        return x * cos + torch.cat((-second, first), dim=-1) * sin


def rotary_embeddings(
    config: ModelConfig, max_positions: int, frequencies_factor: Tensor | None = None
) -> tuple[RotaryEmbedding, RotaryEmbedding]:
    """The embedding of the layers that see everything, and of the sliding ones: one object where they share it."""
    frequencies = _scaled(_frequencies(config, config.rope_theta), config.rope_scaling)
    if frequencies_factor is not None:
        frequencies = frequencies / frequencies_factor.double().cpu()
    full = RotaryEmbedding(frequencies, max_positions)
    if config.local_rope_theta is None:
        return full, full
    return full, RotaryEmbedding(_frequencies(config, config.local_rope_theta), max_positions)


def _frequencies(config: ModelConfig, theta: float) -> Tensor:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    return theta**-exponents  # [D / 2]


def _scaled(frequencies: Tensor, scaling: RopeScaling | None) -> Tensor:
    if scaling is None or scaling.kind is RopeKind.FACTORS:
        return frequencies
    if scaling.kind is RopeKind.LINEAR:
        return frequencies / scaling.factor
    return _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended. Source: Llama 3.1."""
    original, low, high = scaling.original_max_position, scaling.low_freq_factor, scaling.high_freq_factor
    assert original is not None and low is not None and high is not None
    wavelengths = 2 * math.pi / frequencies
    blend = ((original / wavelengths - low) / (high - low)).clamp(0, 1)  # 0: long, stretched; 1: short, kept
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
