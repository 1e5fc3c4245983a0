"""Owns the way from a GGUF file's tensors to dequantised ones under Hugging Face names."""

import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from midstream.engine.models.decoder import Shapes, Weights
from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import ROPE_FACTORS_TENSOR, ModelConfig

_TOP_LEVEL = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_shapes(file: GgufFile) -> Shapes:
    """Name and shape of every tensor. Raises ModelFileError for one that belongs to no Llama-like model."""
    return {_target_name(name): info.shape for name, info in file.tensors.items()}


def load_gguf(file: GgufFile, config: ModelConfig, dtype: torch.dtype) -> Weights:
    """All tensors of the model in `dtype`. The caller has compared `gguf_shapes` with what the config expects."""
    weights: Weights = {}
    for name in file.tensors:
        target = _target_name(name)
        values = _dequantised(file, name)
        # Frequencies are multiplied by positions: in 16 bits the far ones would be whole radians off.
        tensor = values if target == ROPE_FACTORS_TENSOR else values.to(dtype)
        if config.interleaved_rope and target.endswith(("q_proj.weight", "q_proj.bias")):
            tensor = _to_halves(tensor, config.num_heads)
        elif config.interleaved_rope and target.endswith(("k_proj.weight", "k_proj.bias")):
            tensor = _to_halves(tensor, config.num_kv_heads)
        weights[target] = tensor
    return weights


def _dequantised(file: GgufFile, name: str) -> Tensor:
    info = file.tensors[name]
    try:
        values = dequantize(file.raw(name), info.type).reshape(info.shape)
    except NotImplementedError:
        raise ModelFileError(
            f"{file.path}: tensor {name!r} is {info.type.name}, which cannot be read; convert the model to another type"
        ) from None
    # Unquantised tensors are views of the read-only file; torch wants memory that may be written.
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))


def _target_name(name: str) -> str:
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    prefix, _, rest = name.partition(".")
    index, _, tail = rest.partition(".")
    part, _, kind = tail.partition(".")
    if prefix == "blk" and index.isdecimal() and part in _IN_BLOCK and kind in ("weight", "bias"):
        return f"layers.{index}.{_IN_BLOCK[part]}.{kind}"
    raise ModelFileError(f"tensor {name!r} belongs to no Llama-like model; this file cannot be served yet")


def _to_halves(tensor: Tensor, num_heads: int) -> Tensor:
    """Undo llama.cpp's row order: pairs (0, 1), (2, 3) … of a head become its two halves."""
    half = tensor.shape[0] // num_heads // 2
    by_pair = tensor.reshape(num_heads, half, 2, *tensor.shape[1:])  # [heads, D / 2, 2, E]
    return by_pair.transpose(1, 2).reshape(tensor.shape).contiguous()
