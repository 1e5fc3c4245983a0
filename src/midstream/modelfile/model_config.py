"""Owns a model's hyperparameters, checked, from a GGUF or a config.json. Never imports transformers."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from midstream.modelfile.config_fields import ConfigFields
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.json_file import read_json, read_json_if_there
from midstream.modelfile.resolve import ModelFiles, ModelKind

SUPPORTED_ARCHITECTURES = ("llama", "mistral")
GGUF_ARCHITECTURES = ("llama",)  # Mistral files call themselves llama too
ROPE_FACTORS_TENSOR = "rope_freqs.weight"

MAX_LAYERS = 1_024
MAX_HIDDEN_SIZE = 1 << 17
MAX_HEADS = 1_024
MAX_HEAD_DIM = 1_024
MAX_VOCAB_SIZE = 1 << 22
MAX_POSITIONS = 1 << 28


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
    attention_bias: bool
    mlp_bias: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    interleaved_rope: bool
    """True: rotary pairs are neighbours (2i, 2i+1), as in a llama GGUF; False: halves (i, i + D/2)."""

    @classmethod
    def load(cls, files: ModelFiles, gguf: GgufFile | None = None) -> "ModelConfig":
        if files.kind is ModelKind.FOLDER:
            return cls.from_folder(files.path)
        return cls.from_gguf(gguf or GgufFile.open(files.path))

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> "ModelConfig":
        """Raises ModelFileError for an architecture that is not served, or a number that cannot be."""
        general = ConfigFields(gguf.metadata, f"{gguf.path}")
        architecture = general.text("general.architecture")
        _check_architecture(general, architecture, GGUF_ARCHITECTURES)
        return _from_gguf(gguf, general, architecture)

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Raises ModelFileError for an architecture that is not served, or a number that cannot be."""
        path = folder / "config.json"
        fields = ConfigFields(read_json(path), f"{path}")
        architecture = fields.text("model_type")
        _check_architecture(fields, architecture, SUPPORTED_ARCHITECTURES)
        path = folder / "generation_config.json"
        return _from_folder(fields, ConfigFields(read_json_if_there(path), f"{path}"), architecture)


def _check_architecture(fields: ConfigFields, architecture: str, supported: tuple[str, ...]) -> None:
    if architecture not in supported:
        raise fields.error(f"has the architecture {architecture!r}; supported are {', '.join(supported)}")


def _check_heads(fields: ConfigFields, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    if num_heads % num_kv_heads:
        raise fields.error(f"has {num_heads} heads for {num_kv_heads} KV heads; it must be a multiple")
    if head_dim % 2:
        raise fields.error(f"has head size {head_dim}; rotary embeddings need an even one")


# --- GGUF ---


def _from_gguf(gguf: GgufFile, general: ConfigFields, architecture: str) -> ModelConfig:
    model = general.under(f"{architecture}.")
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if model.integer("expert_count", 0, MAX_HEADS, default=0):
        raise model.error("is a mixture of experts; dense models are supported")
    hidden_size = model.integer("embedding_length", 1, MAX_HIDDEN_SIZE)
    num_heads = model.integer("attention.head_count", 1, MAX_HEADS)
    num_kv_heads = model.integer("attention.head_count_kv", 1, num_heads, default=num_heads)
    head_dim = model.integer("attention.key_length", 2, MAX_HEAD_DIM, default=hidden_size // num_heads)
    _check_heads(model, num_heads, num_kv_heads, head_dim)
    for key in ("attention.value_length", "rope.dimension_count"):
        if model.integer(key, 0, MAX_HEAD_DIM, default=head_dim) != head_dim:
            raise model.error(f"has {key} {model.get(key)} with head size {head_dim}; they must be equal")
    default_size = len(tokens) if isinstance(tokens, list) else None
    vocab_size = model.integer("vocab_size", 1, MAX_VOCAB_SIZE, default=default_size)
    token_ids = general.under("tokenizer.ggml.")
    eos = token_ids.token_id("eos_token_id", vocab_size)
    return ModelConfig(
        architecture=architecture,
        num_layers=model.integer("block_count", 1, MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=model.integer("feed_forward_length", 1, 16 * MAX_HIDDEN_SIZE),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        rms_norm_eps=model.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope_theta=model.number("rope.freq_base", 1.0, 1e12, default=10_000.0),
        rope_scaling=_gguf_rope_scaling(gguf, model),
        max_position_embeddings=model.integer("context_length", 1, MAX_POSITIONS),
        sliding_window=model.integer("attention.sliding_window", 0, MAX_POSITIONS, default=0) or None,
        tie_word_embeddings="output.weight" not in gguf.tensors,
        attention_bias="blk.0.attn_q.bias" in gguf.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in gguf.tensors,
        bos_token_id=token_ids.token_id("bos_token_id", vocab_size),
        eos_token_ids=() if eos is None else (eos,),
        interleaved_rope=True,
    )


def _gguf_rope_scaling(gguf: GgufFile, model: ConfigFields) -> RopeScaling | None:
    kind = model.text("rope.scaling.type", default="none")
    if kind not in ("none", "linear"):
        raise model.error(f"has rope.scaling.type {kind!r}; none and linear are supported")
    factor = model.number("rope.scaling.factor", 0.0, 1e6, default=0.0)
    factor = factor or model.number("rope.scale_linear", 0.0, 1e6, default=0.0)
    has_factors = ROPE_FACTORS_TENSOR in gguf.tensors
    if kind == "linear" and factor > 0:
        if has_factors:
            raise model.error(f"has linear rope scaling and the tensor {ROPE_FACTORS_TENSOR}; one is supported")
        return RopeScaling(RopeKind.LINEAR, factor=factor)
    return RopeScaling(RopeKind.FACTORS) if has_factors else None


# --- folder ---


def _from_folder(fields: ConfigFields, generation: ConfigFields, architecture: str) -> ModelConfig:
    if fields.get("quantization_config") is not None:
        raise fields.error("has a quantization_config; give unquantised safetensors, or a quantised .gguf file")
    activation = fields.text("hidden_act", default="silu")
    if activation not in ("silu", "swish"):
        raise fields.error(f"has hidden_act {activation!r}; silu is supported")
    hidden_size = fields.integer("hidden_size", 1, MAX_HIDDEN_SIZE)
    num_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    num_kv_heads = fields.integer("num_key_value_heads", 1, num_heads, default=num_heads)
    head_dim = fields.integer("head_dim", 2, MAX_HEAD_DIM, default=hidden_size // num_heads)
    _check_heads(fields, num_heads, num_kv_heads, head_dim)
    vocab_size = fields.integer("vocab_size", 1, MAX_VOCAB_SIZE)
    rope = fields.child("rope_parameters") or fields
    theta = fields.number("rope_theta", 1.0, 1e12, default=10_000.0)
    eos_token_ids = generation.token_ids("eos_token_id", vocab_size)
    return ModelConfig(
        architecture=architecture,
        num_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 1, 16 * MAX_HIDDEN_SIZE),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, default=1e-6),
        rope_theta=rope.number("rope_theta", 1.0, 1e12, default=theta),
        rope_scaling=_folder_rope_scaling(fields),
        max_position_embeddings=fields.integer("max_position_embeddings", 1, MAX_POSITIONS, default=2048),
        sliding_window=_sliding_window(fields, architecture),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        attention_bias=fields.flag("attention_bias", default=False),
        mlp_bias=fields.flag("mlp_bias", default=False),
        bos_token_id=fields.token_id("bos_token_id", vocab_size),
        eos_token_ids=eos_token_ids or fields.token_ids("eos_token_id", vocab_size),
        interleaved_rope=False,
    )


def _sliding_window(fields: ConfigFields, architecture: str) -> int | None:
    if architecture != "mistral":
        return None
    # transformers gives a Mistral without the key a window of 4096, and none to one that says null.
    if fields.has("sliding_window") and fields.get("sliding_window") is None:
        return None
    return fields.integer("sliding_window", 1, MAX_POSITIONS, default=4096)


def _folder_rope_scaling(fields: ConfigFields) -> RopeScaling | None:
    """Read `rope_parameters` (transformers 5) or `rope_scaling` (before), where the kind was `type` once."""
    scaling = fields.child("rope_parameters") or fields.child("rope_scaling")
    if scaling is None:
        return None
    kind = scaling.text("rope_type", default=scaling.text("type", default="default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(RopeKind.LINEAR, factor=scaling.number("factor", 1.0, 1e6))
    if kind == "llama3":
        return RopeScaling(
            RopeKind.LLAMA3,
            factor=scaling.number("factor", 1.0, 1e6),
            low_freq_factor=scaling.number("low_freq_factor", 0.0, 1e6),
            high_freq_factor=scaling.number("high_freq_factor", 0.0, 1e6),
            original_max_position=scaling.integer("original_max_position_embeddings", 1, MAX_POSITIONS),
        )
    raise fields.error(f"has rope scaling {kind!r}; default, linear and llama3 are supported")
