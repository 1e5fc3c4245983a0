"""Owns the choice of the reader for a model's files, and the check that they hold what the config promises."""

import numpy as np
import torch

from midstream.engine.models.decoder import Shapes, Weights, is_norm, layer_norms
from midstream.engine.weights.gguf import GgufWeights
from midstream.engine.weights.safetensors import SafetensorsWeights
from midstream.engine.weights.stored import Floats, WeightFile
from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import ROPE_FACTORS_TENSOR, ModelConfig, RopeKind
from midstream.modelfile.resolve import ModelFiles, ModelKind

# What old files carry along and the decoder makes itself or does not need.
_IGNORED = ("lm_head.weight", "rotary_emb.inv_freq")


def open_weights(files: ModelFiles, config: ModelConfig) -> WeightFile:
    """The model's tensors, none read yet, every one that `config` asks for there in its right shape.

    Raises ModelFileError where a tensor is missing, has another shape, or has no place in the decoder.
    """
    file: WeightFile
    if files.kind is ModelKind.GGUF:
        file = GgufWeights(GgufFile.open(files.path), config)
    else:
        file = SafetensorsWeights(files.weight_paths)
    _check(files.name, file.shapes, expected_shapes(config))
    return file


def load_weights(files: ModelFiles, config: ModelConfig, dtype: torch.dtype) -> Weights:
    """All tensors of the model in `dtype`; norms and rope factors in float32. Raises what `open_weights` raises."""
    file = open_weights(files, config)
    return {name: _tensor(file, name, config, dtype) for name in expected_shapes(config)}


def _tensor(file: WeightFile, name: str, config: ModelConfig, dtype: torch.dtype) -> torch.Tensor:
    values = vector(file, name, config) if is_norm(name) else file.stored(name).floats()
    # Unquantised tensors are views of the read-only file; torch wants memory that may be written.
    tensor = torch.from_numpy(np.require(values, np.float32, ["C", "W"]))
    # Frequencies are multiplied by positions: in 16 bits the far ones would be whole radians off.
    return tensor if is_norm(name) or name == ROPE_FACTORS_TENSOR else tensor.to(dtype)


def vector(file: WeightFile, name: str, config: ModelConfig) -> Floats:
    """A vector's values in float32, a norm's as the decoder multiplies by them."""
    offset = np.float32(config.norm_offset if is_norm(name) else 0)
    return np.ascontiguousarray(file.stored(name).floats() + offset)


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
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    norms = layer_norms(config)
    shapes: Shapes = {
        name: (hidden,) for name in ("input_layernorm.weight", norms.post, norms.attended, norms.fed) if name
    }
    if config.qk_norm:
        shapes |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    for room, linears, has_bias in (
        ("self_attn", attention, config.qkv_bias),
        ("self_attn", {"o_proj": (hidden, queries)}, config.o_bias),
        ("mlp", mlp, config.mlp_bias),
    ):
        for name, shape in linears.items():
            shapes[f"{room}.{name}.weight"] = shape
            if has_bias:
                shapes[f"{room}.{name}.bias"] = shape[:1]
    return shapes
