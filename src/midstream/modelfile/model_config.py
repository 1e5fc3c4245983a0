"""Owns what a model is: its hyperparameters, whichever file they come from. Reads no file itself."""

import math
from dataclasses import dataclass
from enum import StrEnum

from midstream.modelfile.config_fields import ConfigFields

ROPE_FACTORS_TENSOR = "rope_freqs.weight"

MAX_LAYERS = 1_024
MAX_HIDDEN_SIZE = 1 << 17
MAX_HEADS = 1_024
MAX_HEAD_DIM = 1_024
MAX_VOCAB_SIZE = 1 << 22
MAX_POSITIONS = 1 << 28


class Activation(StrEnum):
    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class RopeKind(StrEnum):
    LINEAR = "linear"
    LLAMA3 = "llama3"
    FACTORS = "factors"
    """One divisor for each frequency, in the tensor `rope_freqs.weight` (how GGUF carries llama3 scaling)."""


@dataclass(frozen=True)
class RopeScaling:
    """`factor` divides positions (linear) or low frequencies (llama3). The other fields are llama3's."""

    kind: RopeKind
    factor: float = 1.0
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position: int | None = None


@dataclass(frozen=True)
class ModelConfig:
    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    sliding_window: int | None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    interleaved_rope: bool
    """True: rotary pairs are neighbours (2i, 2i+1), as in a llama GGUF; False: halves (i, i + D/2)."""
    sliding_layers: frozenset[int] | None = None
    """Layers that `sliding_window` holds for; None: every layer."""
    local_rope_theta: float | None = None
    """Rotary base of the sliding layers where they have their own; their positions are never scaled."""
    qk_norm: bool = False
    """Each head's query and key is RMS-normed before it is rotated."""
    sandwich_norm: bool = False
    """What attention and feed-forward give is RMS-normed too, before it is added to the stream."""
    norm_offset: float = 0.0
    """What the norms' stored weights lack: Gemma's safetensors hold the weight less one."""
    activation: Activation = Activation.SILU
    embedding_scale: float = 1.0
    query_scalar: float | None = None
    """Scores are divided by its root; None: by the root of `head_dim`."""

    @property
    def attention_scale(self) -> float:
        return 1 / math.sqrt(self.query_scalar or self.head_dim)

    def window(self, layer: int) -> int | None:
        """Positions that a query of `layer` sees, its own included; None: all before it."""
        is_sliding = self.sliding_layers is None or layer in self.sliding_layers
        return self.sliding_window if is_sliding else None

    def has_local_rope(self, layer: int) -> bool:
        return self.local_rope_theta is not None and self.window(layer) is not None


def check_architecture(fields: ConfigFields, architecture: str, supported: tuple[str, ...]) -> None:
    """Raises ModelFileError when `architecture` is not one of `supported`."""
    if architecture not in supported:
        raise fields.error(f"has the architecture {architecture!r}; supported are {', '.join(supported)}")


def check_heads(fields: ConfigFields, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """Raises ModelFileError for sizes that grouped-query attention or rotary embeddings cannot have."""
    if num_heads % num_kv_heads:
        raise fields.error(f"has {num_heads} heads for {num_kv_heads} KV heads; it must be a multiple")
    if head_dim % 2:
        raise fields.error(f"has head size {head_dim}; rotary embeddings need an even one")


def check_no_softcap(fields: ConfigFields, *keys: str) -> None:
    """Raises ModelFileError for a model that squeezes its scores or logits (Gemma 2)."""
    for key in keys:
        if fields.number(key, 0.0, 1e6, default=0.0) > 0:
            raise fields.error(f"has {key} {fields.get(key)}; models without soft caps are supported")
