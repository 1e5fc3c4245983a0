"""Owns the way from a GGUF file's tensors to weights as the CPU kernels read them. Keeps one copy of each.

Types that the kernels do not read as they are (K-quants, and parts of different types that are joined to one matrix)
become Q8_0: 8 bits against their 4 to 6, at most 1/254 of a block's largest value away.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from midstream.engine.kernels.cpu.repack import BLOCK, FORMATS, PackedLinear, repack, to_halves
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import ModelConfig

Floats = npt.NDArray[np.float32]

# Weights that were never quantised stay what they are: the torch path serves them.
_UNQUANTISED = {GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16}


@dataclass(frozen=True)
class PackedLayer:
    input_norm: Floats  # [E]
    post_norm: Floats  # [E]
    qkv: PackedLinear  # [(H + 2G) * D, E]
    o: PackedLinear  # [E, H * D]
    gate_up: PackedLinear  # [2 * F, E]
    down: PackedLinear  # [E, F]


@dataclass(frozen=True)
class PackedWeights:
    layers: list[PackedLayer]
    embedding: PackedLinear  # [V, E]
    head: PackedLinear  # [V, E], the embedding itself where they are tied
    final_norm: Floats  # [E]
    frequencies_factor: Floats | None  # [D / 2]


def unpackable(file: GgufFile, config: ModelConfig) -> str | None:
    """Why the kernels cannot serve this model, in words; None when they can."""
    for name, info in file.tensors.items():
        if name.endswith(".bias"):
            return f"it has biases ({name})"
        if len(info.shape) == 2 and info.type in _UNQUANTISED:
            return f"its weights are not quantised ({name} is {info.type.name})"
    sizes = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if any(size % BLOCK for size in sizes) or config.head_dim % 16:
        return f"its sizes {sizes} are no multiples of {BLOCK}"
    return None


def load_packed(file: GgufFile, config: ModelConfig) -> PackedWeights:
    """Repack every matrix; `unpackable` has said None."""
    pack = _Packer(file, config)
    layers = [pack.layer(index) for index in range(config.num_layers)]
    embedding = pack.joined(["token_embd.weight"])
    head = pack.joined(["output.weight"]) if "output.weight" in file.tensors else embedding
    factor = pack.vector("rope_freqs.weight") if "rope_freqs.weight" in file.tensors else None
    return PackedWeights(layers, embedding, head, pack.vector("output_norm.weight"), factor)


class _Packer:
    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config

    def layer(self, index: int) -> PackedLayer:
        block = f"blk.{index}."
        return PackedLayer(
            input_norm=self.vector(f"{block}attn_norm.weight"),
            post_norm=self.vector(f"{block}ffn_norm.weight"),
            qkv=self.joined([f"{block}attn_{part}.weight" for part in "qkv"]),
            o=self.joined([f"{block}attn_output.weight"]),
            gate_up=self.joined([f"{block}ffn_gate.weight", f"{block}ffn_up.weight"]),
            down=self.joined([f"{block}ffn_down.weight"]),
        )

    def vector(self, name: str) -> Floats:
        return np.ascontiguousarray(
            dequantize(self._file.raw(name), self._file.tensors[name].type), np.float32
        ).reshape(-1)

    def joined(self, names: list[str]) -> PackedLinear:
        """The tensors, one below the other, as one matrix."""
        infos = [self._file.tensors[name] for name in names]
        kinds = {info.type for info in infos}
        kind = infos[0].type if len(kinds) == 1 and infos[0].type in FORMATS else GGMLQuantizationType.Q8_0
        parts = [self._rows(name, kind) for name in names]
        raw = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return repack(raw, kind, rows=raw.shape[0], columns=infos[0].shape[1])

    def _rows(self, name: str, kind: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
        """The tensor's bytes in type `kind`, [rows, bytes], its rotary pairs as halves."""
        info = self._file.tensors[name]
        raw = self._file.raw(name).reshape(info.shape[0], -1)
        if info.type is not kind:
            raw = quantize(dequantize(raw, info.type), kind)
        if self._config.interleaved_rope and ".attn_q." in name:
            return to_halves(raw, self._config.num_heads)
        if self._config.interleaved_rope and ".attn_k." in name:
            return to_halves(raw, self._config.num_kv_heads)
        return raw
