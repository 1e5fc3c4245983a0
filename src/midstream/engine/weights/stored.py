"""Owns a tensor as its file holds it: typed bytes, mapped and not copied. Knows no file format."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from midstream.engine.models.decoder import Shapes
from midstream.errors import ModelFileError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FLOAT_KINDS = frozenset({GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16})


@dataclass(frozen=True)
class Stored:
    name: str
    """For messages: the tensor, and the file it lies in."""
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    raw: Bytes  # [rows, bytes of a row]; a vector is one row

    def floats(self) -> Floats:
        """The tensor's values, of `shape`. Raises ModelFileError for a type that gguf cannot read."""
        try:
            return dequantize(self.raw, self.kind).reshape(self.shape)
        except NotImplementedError:
            raise ModelFileError(
                f"{self.name} is {self.kind.name}, which cannot be read; convert the model to another type"
            ) from None


class WeightFile(Protocol):
    """A model's tensors under Hugging Face names, whichever file they lie in."""

    @property
    def shapes(self) -> Shapes:
        """Name and shape of every tensor; reads none."""

    def kind(self, name: str) -> GGMLQuantizationType:
        """How the tensor is stored; reads nothing."""

    def stored(self, name: str) -> Stored:
        """The tensor, its heads' rotary pairs as halves."""
