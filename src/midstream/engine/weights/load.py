"""Owns the choice of the loader for a model's files, and the check that they hold what the config promises."""

import torch

from midstream.engine.models.decoder import Weights
from midstream.engine.weights.gguf import load_gguf
from midstream.engine.weights.safetensors import load_safetensors
from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.resolve import ModelFiles, ModelKind


def load_weights(files: ModelFiles, config: ModelConfig, dtype: torch.dtype) -> Weights:
    """Raises ModelFileError where a tensor is missing or has another shape than the config says."""
    if files.kind is ModelKind.GGUF:
        weights = load_gguf(GgufFile.open(files.path), config, dtype)
    else:
        weights = load_safetensors(files.weight_paths, dtype)
    for name, shape in expected_shapes(config).items():
        if name not in weights:
            raise ModelFileError(f"{files.name}: tensor {name} is missing")
        if tuple(weights[name].shape) != shape:
            raise ModelFileError(f"{files.name}: tensor {name} is {tuple(weights[name].shape)}, expected {shape}")
    return weights


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the decoder cannot do without."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, hidden),
        "norm.weight": (hidden,),
    }
    for index in range(config.num_layers):
        layer = f"layers.{index}."
        shapes |= {
            f"{layer}input_layernorm.weight": (hidden,),
            f"{layer}self_attn.q_proj.weight": (queries, hidden),
            f"{layer}self_attn.k_proj.weight": (keys, hidden),
            f"{layer}self_attn.v_proj.weight": (keys, hidden),
            f"{layer}self_attn.o_proj.weight": (hidden, queries),
            f"{layer}post_attention_layernorm.weight": (hidden,),
            f"{layer}mlp.gate_proj.weight": (inner, hidden),
            f"{layer}mlp.up_proj.weight": (inner, hidden),
            f"{layer}mlp.down_proj.weight": (hidden, inner),
        }
    return shapes
