"""Owns the way from a model's tensors to weights as the CPU kernels read them. Keeps one copy of each.

Types that the kernels read keep their values to the bit. Of the others, Q4_K becomes Q4_1, its blocks' scales and
minimums rounded to fp16 (at most 2^-11 of each away); the rest, and parts of different types that are joined to one
matrix, become Q8_0: 8 bits against their 4 to 6, at most 1/254 + 2^-11 of a block's largest value away.
"""

from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import Q4_K, quantize

from midstream.engine.kernels.cpu.repack import BLOCK, PACKABLE, PackedLinear, repack
from midstream.engine.models.decoder import layer_norms
from midstream.engine.weights.load import vector
from midstream.engine.weights.stored import FLOAT_KINDS, Bytes, Floats, Stored, WeightFile
from midstream.modelfile.model_config import ROPE_FACTORS_TENSOR, ModelConfig

_ATTENTION = ("q_proj", "k_proj", "v_proj")
_ENDS = ("embed_tokens.weight", "lm_head.weight")
_Q4_K_VALUES = 256


@dataclass(frozen=True)
class PackedLayer:
    input_norm: Floats  # [E]
    q_norm: Floats | None  # [D]
    k_norm: Floats | None  # [D]
    attended_norm: Floats | None  # [E]
    post_norm: Floats  # [E]
    fed_norm: Floats | None  # [E]
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


def unpackable(config: ModelConfig) -> str | None:
    """Why the kernels cannot serve a model of these sizes, in words; None when they can."""
    sizes = {
        "hidden size": config.hidden_size,
        "MLP size": config.intermediate_size,
        "width of a KV head's queries": config.num_heads // config.num_kv_heads * config.head_dim,
    }
    for what, size in sizes.items():
        if size % BLOCK:
            return f"its {what} of {size} is no multiple of {BLOCK}"
    return f"its head size of {config.head_dim} is no multiple of 16" if config.head_dim % 16 else None


def load_packed(
    file: WeightFile, config: ModelConfig, quantize_to: GGMLQuantizationType | None = None
) -> PackedWeights:
    """Repack every matrix of a file that `open_weights` has checked; `unpackable` has said None.

    `quantize_to`: Q8_0 or Q4_0 for matrices that are floats. The ends of the model never get less than 8 bits.
    """
    pack = _Packer(file, config, quantize_to)
    layers = [pack.layer(index) for index in range(config.num_layers)]
    embedding = pack.joined(_ENDS[:1])
    head = embedding if config.tie_word_embeddings else pack.joined(_ENDS[1:])
    factor = vector(file, ROPE_FACTORS_TENSOR, config) if ROPE_FACTORS_TENSOR in file.shapes else None
    return PackedWeights(layers, embedding, head, vector(file, "norm.weight", config), factor)


class _Packer:
    def __init__(self, file: WeightFile, config: ModelConfig, quantize_to: GGMLQuantizationType | None) -> None:
        self._file = file
        self._config = config
        self._quantize_to = quantize_to
        self._norms = layer_norms(config)

    def layer(self, index: int) -> PackedLayer:
        prefix = f"layers.{index}."
        return PackedLayer(
            input_norm=vector(self._file, f"{prefix}input_layernorm.weight", self._config),
            q_norm=self._norm(f"{prefix}self_attn.q_norm.weight" if self._config.qk_norm else None),
            k_norm=self._norm(f"{prefix}self_attn.k_norm.weight" if self._config.qk_norm else None),
            attended_norm=self._norm(self._norms.attended and prefix + self._norms.attended),
            post_norm=vector(self._file, prefix + self._norms.post, self._config),
            fed_norm=self._norm(self._norms.fed and prefix + self._norms.fed),
            qkv=self.joined([f"{prefix}self_attn.{part}.weight" for part in _ATTENTION]),
            o=self.joined([f"{prefix}self_attn.o_proj.weight"]),
            gate_up=self.joined([f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"]),
            down=self.joined([f"{prefix}mlp.down_proj.weight"]),
        )

    def _norm(self, name: str | None) -> Floats | None:
        return None if name is None else vector(self._file, name, self._config)

    def joined(self, names: "list[str] | tuple[str, ...]") -> PackedLinear:
        """The matrices, one below the other, as one, with their biases."""
        kind = _common({self._target_kind(name) for name in names})
        parts = [as_kind(self._file.stored(name), kind) for name in names]
        raw = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return repack(raw, kind, self._file.shapes[names[0]][1], self._bias(names))

    def _bias(self, names: "list[str] | tuple[str, ...]") -> Floats | None:
        biases = [name.removesuffix("weight") + "bias" for name in names]
        if biases[0] not in self._file.shapes:
            return None
        return np.concatenate([vector(self._file, name, self._config) for name in biases])

    def _target_kind(self, name: str) -> GGMLQuantizationType:
        kind = self._file.kind(name)
        if kind in FLOAT_KINDS and self._quantize_to is not None:
            return GGMLQuantizationType.Q8_0 if name in _ENDS else self._quantize_to
        if kind is GGMLQuantizationType.Q4_K:
            return GGMLQuantizationType.Q4_1
        return kind if kind in PACKABLE else GGMLQuantizationType.Q8_0


def _common(kinds: set[GGMLQuantizationType]) -> GGMLQuantizationType:
    """The type for matrices of `kinds` that are joined; floats are never rounded for it."""
    if len(kinds) == 1:
        return next(iter(kinds))
    return GGMLQuantizationType.F32 if kinds <= FLOAT_KINDS else GGMLQuantizationType.Q8_0


def as_kind(stored: Stored, kind: GGMLQuantizationType) -> Bytes:
    """The matrix's rows in type `kind`: [rows, bytes]."""
    if stored.kind is kind:
        return stored.raw
    if stored.kind is GGMLQuantizationType.Q4_K and kind is GGMLQuantizationType.Q4_1:
        return q4_k_as_q4_1(stored.raw)
    return quantize(stored.floats(), kind)


def q4_k_as_q4_1(raw: Bytes) -> Bytes:
    """Q4_K rows as Q4_1 rows: the same nibbles, each block's 6-bit scale and minimum multiplied out.

    Block of 256: d, dmin (fp16) | 12 bytes: 8 scales and 8 minimums of 6 bits | 128 bytes of nibbles, those of two
    neighbouring blocks of 32 in one byte. Source: ggml-quants.c, dequantize_row_q4_K.
    """
    blocks = raw.reshape(-1, raw.shape[1] // 144, 144)  # [rows, superblocks, bytes]
    d, dmin = (blocks[..., at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))  # [.., 1]
    scales, minimums = Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))  # [rows * superblocks, 8]
    shape = (*blocks.shape[:2], 8)
    heads = np.stack([d * scales.reshape(shape), -dmin * minimums.reshape(shape)], axis=-1).astype(np.float16)
    pairs = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 1, 32)  # [rows, superblocks, pairs of blocks, 1, 32]
    values = np.concatenate([pairs & 15, pairs >> 4], axis=-2).reshape(*shape, 32)  # [rows, superblocks, 8, 32]
    nibbles = values[..., :16] | values[..., 16:] << 4  # [rows, superblocks, 8, 16]
    return np.concatenate([heads.view(np.uint8), nibbles], axis=-1).reshape(raw.shape[0], -1)
