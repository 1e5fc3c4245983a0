"""Owns the forward pass of the Llama family: Llama, SmolLM2, Mistral. Never samples, never allocates KV."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from midstream.engine.attention.metadata import AttentionMetadata
from midstream.engine.attention.reference import paged_attention
from midstream.engine.kv_cache import KVCache
from midstream.engine.layers.rotary import RotaryEmbedding
from midstream.modelfile.model_config import ModelConfig

Weights = dict[str, Tensor]
"""Tensors by their Hugging Face names, without the `model.` in front; linears are [out, in]."""

Shapes = dict[str, tuple[int, ...]]
"""The shapes of `Weights`, by the same names."""


@dataclass(frozen=True)
class ModelInputs:
    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionMetadata
    sampling_indices: Tensor  # [S] int64, rows of T whose logits are wanted


@dataclass(frozen=True)
class _Layer:
    """One block's weights, with the projections that read the same input joined to one matrix."""

    input_norm: Tensor  # [E]
    qkv: Tensor  # [(H + 2G) * D, E]
    qkv_bias: Tensor | None
    o: Tensor  # [E, H * D]
    o_bias: Tensor | None
    post_norm: Tensor  # [E]
    gate_up: Tensor  # [2 * F, E]
    gate_up_bias: Tensor | None
    down: Tensor  # [E, F]
    down_bias: Tensor | None


class Decoder:
    """A decoder-only transformer with pre-norm, rotary embeddings, grouped-query attention and SwiGLU."""

    def __init__(self, config: ModelConfig, weights: Weights, *, max_model_len: int) -> None:
        self.config = config
        self.embedding = weights.pop("embed_tokens.weight")  # [V, E]
        self.layers = [_take_layer(weights, index, config) for index in range(config.num_layers)]
        self.norm = weights.pop("norm.weight")  # [E]
        self.lm_head = self.embedding if config.tie_word_embeddings else weights.pop("lm_head.weight")  # [V, E]
        self.rotary = RotaryEmbedding(config, max_model_len, weights.pop("rope_freqs.weight", None))
        self.scale = config.head_dim**-0.5

    @torch.inference_mode()
    def forward(self, inputs: ModelInputs, cache: KVCache) -> Tensor:
        """Write the new tokens' KV and return the logits [S, V] of the rows that sample."""
        x = F.embedding(inputs.token_ids, self.embedding)  # [T, E]
        for index, layer in enumerate(self.layers):
            x = x + self._attend(layer, self._rms_norm(x, layer.input_norm), inputs, cache, index)
            x = x + self._feed_forward(layer, self._rms_norm(x, layer.post_norm))
        last = x[inputs.sampling_indices]  # [S, E]
        return F.linear(self._rms_norm(last, self.norm), self.lm_head)  # [S, V]

    def _attend(self, layer: _Layer, x: Tensor, inputs: ModelInputs, cache: KVCache, index: int) -> Tensor:
        H, G, D = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        qkv = F.linear(x, layer.qkv, layer.qkv_bias).view(-1, H + 2 * G, D)  # [T, H + 2G, D]
        rotated = self.rotary.rotate(qkv[:, : H + G], inputs.positions)  # [T, H + G, D]
        keys, values = cache.keys(index), cache.values(index)
        slots = inputs.attention.slot_mapping
        keys.index_copy_(0, slots, rotated[:, H:].to(keys.dtype))
        values.index_copy_(0, slots, qkv[:, H + G :].to(values.dtype))
        attended = paged_attention(
            rotated[:, :H],
            keys,
            values,
            inputs.attention,
            scale=self.scale,
            sliding_window=self.config.sliding_window,
        )  # [T, H, D]
        return F.linear(attended.reshape(-1, H * D), layer.o, layer.o_bias)  # [T, E]

    def _feed_forward(self, layer: _Layer, x: Tensor) -> Tensor:
        gate, up = F.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)  # [T, F] each
        return F.linear(F.silu(gate) * up, layer.down, layer.down_bias)  # [T, E]

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.rms_norm_eps)


def _take_layer(weights: Weights, index: int, config: ModelConfig) -> _Layer:
    """Move one block's tensors out of `weights`, so that a joined matrix and its parts are never all held."""

    def take(name: str) -> Tensor:
        return weights.pop(f"layers.{index}.{name}")

    def join(prefix: str, names: list[str], kind: str) -> Tensor | None:
        full = [f"{prefix}.{name}.{kind}" for name in names]
        if f"layers.{index}.{full[0]}" not in weights:
            return None
        return torch.cat([take(name) for name in full])

    def matrix(prefix: str, names: list[str]) -> Tensor:
        joined = join(prefix, names, "weight")
        assert joined is not None, f"layer {index} has no {prefix}.{names[0]}"
        return joined

    attention, feed_forward = ["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]
    return _Layer(
        input_norm=take("input_layernorm.weight"),
        qkv=matrix("self_attn", attention),
        qkv_bias=join("self_attn", attention, "bias"),
        o=take("self_attn.o_proj.weight"),
        o_bias=join("self_attn", ["o_proj"], "bias"),
        post_norm=take("post_attention_layernorm.weight"),
        gate_up=matrix("mlp", feed_forward),
        gate_up_bias=join("mlp", feed_forward, "bias"),
        down=take("mlp.down_proj.weight"),
        down_bias=join("mlp", ["down_proj"], "bias"),
    )
