"""Owns reading a model's hyperparameters from a Hugging Face folder's config.json. Never imports transformers."""

from pathlib import Path

from midstream.modelfile.config_fields import ConfigFields
from midstream.modelfile.json_file import read_json, read_json_if_there
from midstream.modelfile.model_config import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN_SIZE,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB_SIZE,
    Activation,
    ModelConfig,
    RopeKind,
    RopeScaling,
    check_architecture,
    check_heads,
    check_no_softcap,
)

FOLDER_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
_GEMMA_PATTERN = 6


def folder_architecture(folder: Path) -> str:
    """The `model_type` that the folder's config.json names."""
    return _fields(folder / "config.json").text("model_type")


def config_from_folder(folder: Path) -> ModelConfig:
    """Raises ModelFileError for an architecture that is not served, or a number that cannot be."""
    fields = _fields(folder / "config.json")
    path = folder / "generation_config.json"
    generation = ConfigFields(read_json_if_there(path), f"{path}")
    architecture = fields.text("model_type")
    check_architecture(fields, architecture, FOLDER_ARCHITECTURES)
    if fields.get("quantization_config") is not None:
        raise fields.error("has a quantization_config; give unquantised safetensors, or a quantised .gguf file")
    is_gemma = architecture == "gemma3_text"
    if is_gemma:
        _check_gemma(fields)
    hidden_size = fields.integer("hidden_size", 1, MAX_HIDDEN_SIZE)
    num_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    num_kv_heads = fields.integer("num_key_value_heads", 1, num_heads, default=num_heads)
    default_size = {"qwen3": 128, "gemma3_text": 256}.get(architecture, hidden_size // num_heads)
    head_dim = fields.integer("head_dim", 2, MAX_HEAD_DIM, default=default_size)
    check_heads(fields, num_heads, num_kv_heads, head_dim)
    num_layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab_size = fields.integer("vocab_size", 1, MAX_VOCAB_SIZE)
    has_bias = fields.flag("attention_bias", default=False)
    ropes = _Ropes(fields, 1_000_000.0 if is_gemma else 10_000.0)
    return ModelConfig(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 1, 16 * MAX_HIDDEN_SIZE),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, default=1e-6),
        rope_theta=ropes.theta(),
        rope_scaling=ropes.scaling(),
        max_position_embeddings=fields.integer("max_position_embeddings", 1, MAX_POSITIONS, default=2048),
        sliding_window=_sliding_window(fields, architecture),
        sliding_layers=_sliding_layers(fields, architecture, num_layers),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=is_gemma),
        qkv_bias=architecture == "qwen2" or has_bias,
        o_bias=architecture != "qwen2" and has_bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
        bos_token_id=fields.token_id("bos_token_id", vocab_size),
        eos_token_ids=generation.token_ids("eos_token_id", vocab_size) or fields.token_ids("eos_token_id", vocab_size),
        interleaved_rope=False,
        qk_norm=architecture in ("qwen3", "gemma3_text"),
        sandwich_norm=is_gemma,
        norm_offset=1.0 if is_gemma else 0.0,
        local_rope_theta=ropes.local_theta() if is_gemma else None,
        activation=_activation(fields),
        embedding_scale=hidden_size**0.5 if is_gemma else 1.0,
        query_scalar=fields.number("query_pre_attn_scalar", 1.0, 1e6, default=256.0) if is_gemma else None,
    )


def _fields(path: Path) -> ConfigFields:
    return ConfigFields(read_json(path), f"{path}")


def _check_gemma(fields: ConfigFields) -> None:
    check_no_softcap(fields, "attn_logit_softcapping", "final_logit_softcapping")
    if fields.flag("use_bidirectional_attention", default=False):
        raise fields.error("has use_bidirectional_attention; models that look back only can generate")


def _activation(fields: ConfigFields) -> Activation:
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    name = fields.text(key, default="gelu_pytorch_tanh" if key == "hidden_activation" else "silu")
    if name not in _ACTIVATIONS:
        raise fields.error(f"has {key} {name!r}; {', '.join(_ACTIVATIONS)} are supported")
    return _ACTIVATIONS[name]


def _sliding_window(fields: ConfigFields, architecture: str) -> int | None:
    if architecture not in ("mistral", "qwen2", "qwen3", "gemma3_text"):
        return None
    if architecture in ("qwen2", "qwen3") and not fields.flag("use_sliding_window", default=False):
        return None
    # transformers gives a model without the key a window of 4096, and none to one that says null.
    if fields.has("sliding_window") and fields.get("sliding_window") is None:
        return None
    return fields.integer("sliding_window", 1, MAX_POSITIONS, default=4096)


def _sliding_layers(fields: ConfigFields, architecture: str, num_layers: int) -> frozenset[int] | None:
    """Which layers have the window; None: all. `layer_types` says it, else the architecture's own rule."""
    if architecture in ("llama", "mistral"):
        return None
    kinds = fields.get("layer_types")
    if kinds is None:
        if architecture == "gemma3_text":
            pattern = fields.integer("sliding_window_pattern", 1, MAX_LAYERS, default=_GEMMA_PATTERN)
            return frozenset(layer for layer in range(num_layers) if (layer + 1) % pattern)
        return frozenset(range(fields.integer("max_window_layers", 0, MAX_LAYERS, default=28), num_layers))
    known = ("sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise fields.error(f"has layer_types {kinds!r}; {num_layers} of {' and '.join(known)} are needed")
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")


class _Ropes:
    """`rope_parameters` (transformers 5; for each kind of layer in a Gemma) or `rope_scaling` (before)."""

    def __init__(self, fields: ConfigFields, default_theta: float) -> None:
        self._fields = fields
        self._default_theta = default_theta
        whole = fields.child("rope_parameters")
        self._full = (whole.child("full_attention") or whole) if whole else fields.child("rope_scaling")
        self._sliding = whole.child("sliding_attention") if whole else None

    def theta(self) -> float:
        default = self._fields.number("rope_theta", 1.0, 1e12, default=self._default_theta)
        return (self._full or self._fields).number("rope_theta", 1.0, 1e12, default=default)

    def local_theta(self) -> float:
        default = self._fields.number("rope_local_base_freq", 1.0, 1e12, default=10_000.0)
        if self._sliding is None:
            return default
        kind = self._sliding.text("rope_type", default="default")
        if kind != "default":
            raise self._fields.error(f"has rope scaling {kind!r} in its sliding layers; default is supported")
        return self._sliding.number("rope_theta", 1.0, 1e12, default=default)

    def scaling(self) -> RopeScaling | None:
        """The kind's name was `type` once."""
        scaling = self._full
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
        raise self._fields.error(f"has rope scaling {kind!r}; default, linear and llama3 are supported")
