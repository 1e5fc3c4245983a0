"""Owns reading a model's hyperparameters from a GGUF's metadata. Reads no tensor."""

from dataclasses import dataclass

from midstream.modelfile.config_fields import ConfigFields
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN_SIZE,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB_SIZE,
    ROPE_FACTORS_TENSOR,
    Activation,
    ModelConfig,
    RopeKind,
    RopeScaling,
    check_architecture,
    check_heads,
    check_no_softcap,
)

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")  # Mistral files call themselves llama too

# Every 6th layer of a Gemma 3 sees the whole context. GGUF does not say so; llama.cpp knows it by the architecture.
_GEMMA3_PATTERN = 6
_GEMMA3_LOCAL_ROPE_THETA = 10_000.0
_GEMMA3_27B_LAYERS = 62


@dataclass(frozen=True)
class _Sizes:
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def config_from_gguf(gguf: GgufFile) -> ModelConfig:
    """Raises ModelFileError for an architecture that is not served, or a number that cannot be."""
    general = ConfigFields(gguf.metadata, f"{gguf.path}")
    architecture = general.text("general.architecture")
    check_architecture(general, architecture, GGUF_ARCHITECTURES)
    model = general.under(f"{architecture}.")
    sizes = _sizes(model)
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    default_size = len(tokens) if isinstance(tokens, list) else None
    vocab_size = model.integer("vocab_size", 1, MAX_VOCAB_SIZE, default=default_size)
    token_ids = general.under("tokenizer.ggml.")
    eos = token_ids.token_id("eos_token_id", vocab_size)
    is_gemma = architecture == "gemma3"
    return ModelConfig(
        architecture=architecture,
        num_layers=sizes.num_layers,
        hidden_size=sizes.hidden_size,
        intermediate_size=model.integer("feed_forward_length", 1, 16 * MAX_HIDDEN_SIZE),
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=vocab_size,
        rms_norm_eps=model.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope_theta=model.number("rope.freq_base", 1.0, 1e12, default=10_000.0),
        rope_scaling=_rope_scaling(gguf, model),
        max_position_embeddings=model.integer("context_length", 1, MAX_POSITIONS),
        sliding_window=model.integer("attention.sliding_window", 0, MAX_POSITIONS, default=0) or None,
        tie_word_embeddings="output.weight" not in gguf.tensors,
        qkv_bias="blk.0.attn_q.bias" in gguf.tensors,
        o_bias="blk.0.attn_output.bias" in gguf.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in gguf.tensors,
        bos_token_id=token_ids.token_id("bos_token_id", vocab_size),
        eos_token_ids=() if eos is None else (eos,),
        interleaved_rope=architecture == "llama",
        qk_norm="blk.0.attn_q_norm.weight" in gguf.tensors,
        sandwich_norm="blk.0.post_ffw_norm.weight" in gguf.tensors,
        sliding_layers=_gemma3_sliding_layers(sizes.num_layers) if is_gemma else None,
        local_rope_theta=_GEMMA3_LOCAL_ROPE_THETA if is_gemma else None,
        activation=Activation.GELU_TANH if is_gemma else Activation.SILU,
        embedding_scale=sizes.hidden_size**0.5 if is_gemma else 1.0,
        query_scalar=_gemma3_query_scalar(sizes) if is_gemma else None,
    )


def _sizes(model: ConfigFields) -> _Sizes:
    if model.integer("expert_count", 0, MAX_HEADS, default=0):
        raise model.error("is a mixture of experts; dense models are supported")
    check_no_softcap(model, "attn_logit_softcapping", "final_logit_softcapping")
    hidden_size = model.integer("embedding_length", 1, MAX_HIDDEN_SIZE)
    num_heads = model.integer("attention.head_count", 1, MAX_HEADS)
    num_kv_heads = model.integer("attention.head_count_kv", 1, num_heads, default=num_heads)
    head_dim = model.integer("attention.key_length", 2, MAX_HEAD_DIM, default=hidden_size // num_heads)
    check_heads(model, num_heads, num_kv_heads, head_dim)
    for key in ("attention.value_length", "rope.dimension_count"):
        if model.integer(key, 0, MAX_HEAD_DIM, default=head_dim) != head_dim:
            raise model.error(f"has {key} {model.get(key)} with head size {head_dim}; they must be equal")
    return _Sizes(model.integer("block_count", 1, MAX_LAYERS), hidden_size, num_heads, num_kv_heads, head_dim)


def _gemma3_sliding_layers(num_layers: int) -> frozenset[int]:
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % _GEMMA3_PATTERN)


def _gemma3_query_scalar(sizes: _Sizes) -> float:
    """The 27B model alone scales by its width, not by its heads' size. Source: llama.cpp, src/models/gemma3.cpp."""
    is_27b = sizes.num_layers == _GEMMA3_27B_LAYERS
    return sizes.hidden_size / sizes.num_heads if is_27b else float(sizes.head_dim)


def _rope_scaling(gguf: GgufFile, model: ConfigFields) -> RopeScaling | None:
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
