"""Owns the way from safetensors files to tensors. Never opens a pickle."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file

from midstream.engine.models.decoder import Shapes, Weights
from midstream.modelfile.safetensors_header import check_safetensors


def safetensors_shapes(paths: Iterable[Path]) -> Shapes:
    """Name and shape of every tensor, from checked headers: no file may be loaded before."""
    return {_target_name(name): shape for path in paths for name, (_, shape) in check_safetensors(path).items()}


def load_safetensors(paths: Iterable[Path], dtype: torch.dtype) -> Weights:
    """All tensors of the files in `dtype`. The caller has called `safetensors_shapes`."""
    return {_target_name(name): tensor.to(dtype) for path in paths for name, tensor in load_file(path).items()}


def _target_name(name: str) -> str:
    return name.removeprefix("model.")
