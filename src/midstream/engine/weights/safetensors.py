"""Owns the way from safetensors files to mapped tensors. Never opens a pickle."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

from midstream.engine.models.decoder import Shapes
from midstream.engine.weights.stored import Stored
from midstream.errors import ModelFileError
from midstream.modelfile.safetensors_header import SafetensorsInfo, check_safetensors

_KINDS = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "BF16": GGMLQuantizationType.BF16,
}


class SafetensorsWeights:
    """The tensors of all files of a folder, headers checked before anything is mapped."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._places: dict[str, tuple[Path, SafetensorsInfo]] = {}
        for path in paths:
            for name, info in check_safetensors(path).items():
                self._places[name.removeprefix("model.")] = (path, info)

    @property
    def shapes(self) -> Shapes:
        return {name: info.shape for name, (_, info) in self._places.items()}

    def kind(self, name: str) -> GGMLQuantizationType:
        path, info = self._places[name]
        if info.dtype not in _KINDS:
            raise ModelFileError(
                f"{path}: tensor {name} is {info.dtype}; {', '.join(_KINDS)} are supported: convert the model"
            )
        return _KINDS[info.dtype]

    def stored(self, name: str) -> Stored:
        kind = self.kind(name)
        path, info = self._places[name]
        rows = info.shape[0] if len(info.shape) > 1 else 1
        raw = np.memmap(path, np.uint8, "r", info.offset, (info.nbytes,))
        return Stored(f"{path}: tensor {name!r}", kind, info.shape, np.asarray(raw).reshape(rows, -1))
