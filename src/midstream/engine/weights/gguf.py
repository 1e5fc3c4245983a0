"""Owns the way from a GGUF file's tensors to dequantised ones under Hugging Face names."""

import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from midstream.engine.models.decoder import Weights
from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import ModelConfig

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


def load_gguf(file: GgufFile, config: ModelConfig, dtype: torch.dtype) -> Weights:
    """All tensors of the model in `dtype`. Raises ModelFileError for a tensor that the decoder does not know."""
    weights: Weights = {}
    for name, info in file.tensors.items():
        values = dequantize(file.raw(name), info.type).reshape(info.shape)
        # Unquantised tensors are views of the read-only file; torch wants memory that may be written.
        tensor = torch.from_numpy(np.require(values, np.float32, ["C", "W"])).to(dtype)
        target = _target_name(name)
        if config.interleaved_rope and target.endswith(("q_proj.weight", "q_proj.bias")):
            tensor = _to_halves(tensor, config.num_heads)
        elif config.interleaved_rope and target.endswith(("k_proj.weight", "k_proj.bias")):
            tensor = _to_halves(tensor, config.num_kv_heads)
        weights[target] = tensor
    return weights


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
