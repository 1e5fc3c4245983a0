"""Owns the choice of the loader for a model's files, and the check that they hold what the config promises."""

import torch

from midstream.engine.models.decoder import Shapes, Weights
from midstream.engine.weights.gguf import gguf_shapes, load_gguf
from midstream.engine.weights.safetensors import load_safetensors, safetensors_shapes
from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import ROPE_FACTORS_TENSOR, ModelConfig, RopeKind
from midstream.modelfile.resolve import ModelFiles, ModelKind

# What old files carry along and the decoder makes itself or does not need.
_IGNORED = ("lm_head.weight", "rotary_emb.inv_freq")


def load_weights(files: ModelFiles, config: ModelConfig, dtype: torch.dtype) -> Weights:
    """Load exactly the tensors that `config` asks for; nothing is loaded before all their shapes are right.

    Raises ModelFileError where a tensor is missing, has another shape, or has no place in the decoder.
    """
    expected = expected_shapes(config)
    if files.kind is ModelKind.GGUF:
        file = GgufFile.open(files.path)
        _check(files.name, gguf_shapes(file), expected)
        weights = load_gguf(file, config, dtype)
    else:
        _check(files.name, safetensors_shapes(files.weight_paths), expected)
        weights = load_safetensors(files.weight_paths, dtype)
    return {name: weights[name] for name in expected}


def _check(model: str, found: Shapes, expected: Shapes) -> None:
    for name, shape in expected.items():
        if name not in found:
            raise ModelFileError(f"{model}: tensor {name} is missing; fetch the model again")
        if found[name] != shape:
            raise ModelFileError(f"{model}: tensor {name} is {found[name]}; its configuration needs {shape}")
    for name in found:
        # Left out silently, it would be another model.
        if name not in expected and not name.endswith(_IGNORED):
            raise ModelFileError(f"{model}: tensor {name} has no place in a model of this configuration")


def expected_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor of the model."""
    shapes: Shapes = {
        "embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "norm.weight": (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    if config.rope_scaling is not None and config.rope_scaling.kind is RopeKind.FACTORS:
        shapes[ROPE_FACTORS_TENSOR] = (config.head_dim // 2,)
    layer = _layer_shapes(config)
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> Shapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
    attention["o_proj"] = (hidden, queries)
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    shapes: Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for room, linears, has_bias in (
        ("self_attn", attention, config.attention_bias),
        ("mlp", mlp, config.mlp_bias),
    ):
        for name, shape in linears.items():
            shapes[f"{room}.{name}.weight"] = shape
            if has_bias:
                shapes[f"{room}.{name}.bias"] = shape[:1]
    return shapes
