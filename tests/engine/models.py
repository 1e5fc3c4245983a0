"""Owns tiny model configurations and random weights for tests, without transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFWriter
from safetensors.torch import save_file

from midstream.engine.models.decoder import Weights
from midstream.engine.weights.load import expected_shapes
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.resolve import ModelFiles, ModelKind

TINY = ModelConfig(
    architecture="llama",
    num_layers=2,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=96,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_scaling=None,
    max_position_embeddings=128,
    sliding_window=None,
    tie_word_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    bos_token_id=None,
    eos_token_ids=(0,),
    interleaved_rope=False,
)


def tiny(**changes: Any) -> ModelConfig:
    return replace(TINY, **changes)


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    dice = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=dice) * 0.3 for name, shape in expected_shapes(config).items()}
    return {name: tensor + 1 if "norm" in name else tensor for name, tensor in weights.items()}


def save_folder(folder: Path, *parts: Weights) -> ModelFiles:
    """Save each of `parts` as one safetensors file, under the names that transformers gives."""
    paths = []
    for number, weights in enumerate(parts):
        named = {name if name.startswith("lm_head") else f"model.{name}": t for name, t in weights.items()}
        paths.append(folder / f"model-{number}.safetensors")
        save_file(named, paths[-1])
    return ModelFiles(ModelKind.FOLDER, folder, "tiny", tuple(paths))


GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name == "rope_freqs.weight":
        return name
    prefix = ""
    if name.startswith("layers."):
        _, index, name = name.split(".", 2)
        prefix = f"blk.{index}."
    part, _, kind = name.rpartition(".")
    return f"{prefix}{GGUF_NAMES[part]}.{kind}"


def interleave(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """llama.cpp's order of the rows of q and k: what convert_hf_to_gguf.py's `permute` does."""
    if tensor.shape[0] % (2 * num_heads):
        return tensor  # a test's misshapen one
    return (
        tensor.reshape(num_heads, 2, tensor.shape[0] // num_heads // 2, *tensor.shape[1:])
        .swapaxes(1, 2)
        .reshape(tensor.shape)
    )


def write_gguf(path: Path, config: ModelConfig, weights: Weights) -> ModelFiles:
    """Write `weights`, whose heads are in halves, as llama.cpp's converter would."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    num_heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    for name, tensor in weights.items():
        linear = name.split(".")[-2]
        ordered = interleave(tensor, num_heads[linear]) if linear in num_heads else tensor
        writer.add_tensor(gguf_name(name), ordered.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles(ModelKind.GGUF, path, "tiny", (path,))
