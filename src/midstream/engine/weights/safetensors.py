"""Owns the way from safetensors files to tensors. Never opens a pickle."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file

from midstream.engine.models.decoder import Weights
from midstream.modelfile.safetensors_header import check_safetensors


def load_safetensors(paths: Iterable[Path], dtype: torch.dtype) -> Weights:
    """All tensors of the files in `dtype`, without the leading `model.` of their names."""
    weights: Weights = {}
    for path in paths:
        check_safetensors(path)
        for name, tensor in load_file(path).items():
            weights[name.removeprefix("model.")] = tensor.to(dtype)
    return weights
