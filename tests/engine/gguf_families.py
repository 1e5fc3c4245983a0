"""Owns GGUF files of the other families, as llama.cpp's converter writes them from their Hugging Face tensors."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from midstream.engine.models.decoder import Weights
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.resolve import ModelFiles, ModelKind
from tests.engine.models import gguf_name

_PLAIN = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_SANDWICH = _PLAIN | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_family_gguf(
    path: Path, architecture: str, config: ModelConfig, weights: Weights, *, linear_rope_factor: float | None = None
) -> ModelFiles:
    """Write `weights`, which have transformers' names and values; unlike llama's, their heads stay in halves."""
    is_gemma = architecture == "gemma3"
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    if architecture != "qwen2":  # its heads divide the width: the converter leaves their size out
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    if linear_rope_factor is not None:
        writer.add_string(f"{architecture}.rope.scaling.type", "linear")
        writer.add_rope_scaling_factor(linear_rope_factor)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for name, tensor in weights.items():
        # Gemma's safetensors hold its norms' weights less one; the converter adds it.
        offset = np.float32(is_gemma and name.endswith("norm.weight"))
        writer.add_tensor(_name(name, _SANDWICH if is_gemma else _PLAIN), tensor.numpy() + offset)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles(ModelKind.GGUF, path, "tiny", (path,))


def _name(name: str, others: dict[str, str]) -> str:
    index, _, part = name.removeprefix("layers.").partition(".")
    other = others.get(part.rpartition(".")[0])
    return gguf_name(name) if other is None else f"blk.{index}.{other}.weight"
