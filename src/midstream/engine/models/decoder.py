"""Owns the forward pass of Llama, Mistral, Qwen 2 and 3, and Gemma 3 text. Never samples, never allocates KV."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from midstream.engine.kv_cache import KVCache
from midstream.engine.layers.rotary import RotaryEmbedding, rotary_embeddings
from midstream.modelfile.model_config import Activation, ModelConfig

Weights = dict[str, Tensor]
"""Tensors by their Hugging Face names, without the `model.` in front; linears are [out, in]."""

Shapes = dict[str, tuple[int, ...]]
"""The shapes of `Weights`, by the same names."""


def is_norm(name: str) -> bool:
    """True for the weight of a norm: those stay float32, whatever the model's own type."""
    return name.endswith("norm.weight")


@dataclass(frozen=True)
class LayerNorms:
    """What a block's norms over the stream are called: `post` stands before the MLP, whatever its name says."""

    post: str
    attended: str | None = None
    fed: str | None = None


def layer_norms(config: ModelConfig) -> LayerNorms:
    if not config.sandwich_norm:
        return LayerNorms("post_attention_layernorm.weight")
    return LayerNorms(
        post="pre_feedforward_layernorm.weight",
        attended="post_attention_layernorm.weight",
        fed="post_feedforward_layernorm.weight",
    )


class Attention(Protocol):
    """Where a batch's queries stand and what they see."""

    @property
    def slot_mapping(self) -> Tensor:
        """[T] int64, where the new tokens' keys and values go."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, *, scale: float, sliding_window: int | None
    ) -> Tensor:
        """query [T, H, D]; keys and values [N * B, G, D], the new tokens' included; returns [T, H, D]."""


@dataclass(frozen=True)
class ModelInputs:
    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: Attention
    sampling_indices: Tensor  # [S] int64, rows of T whose logits are wanted


@dataclass(frozen=True)
class _Layer:
    """One block's weights, with the projections that read the same input joined to one matrix."""

    window: int | None
    rotary: RotaryEmbedding
    input_norm: Tensor  # [E]
    qkv: Tensor  # [(H + 2G) * D, E]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    o: Tensor  # [E, H * D]
    o_bias: Tensor | None
    attended_norm: Tensor | None  # [E]
    post_norm: Tensor  # [E]
    gate_up: Tensor  # [2 * F, E]
    gate_up_bias: Tensor | None
    down: Tensor  # [E, F]
    down_bias: Tensor | None
    fed_norm: Tensor | None  # [E]


class Decoder:
    """A decoder-only transformer with pre-norm, rotary embeddings, grouped-query attention and a gated MLP."""

    def __init__(self, config: ModelConfig, weights: Weights, *, max_model_len: int) -> None:
        self.config = config
        self.embedding = weights.pop("embed_tokens.weight")  # [V, E]
        tables = rotary_embeddings(config, max_model_len, weights.pop("rope_freqs.weight", None))
        full, local = (rotary.to(self.embedding.device) for rotary in tables)
        self.layers = [
            _take_layer(weights, index, config, local if config.has_local_rope(index) else full)
            for index in range(config.num_layers)
        ]
        self.norm = weights.pop("norm.weight")  # [E]
        self.lm_head = self.embedding if config.tie_word_embeddings else weights.pop("lm_head.weight")  # [V, E]

    @torch.inference_mode()
    def forward(self, inputs: ModelInputs, cache: KVCache) -> Tensor:
        """Write the new tokens' KV and return the logits [S, V] of the rows that sample."""
        x = F.embedding(inputs.token_ids, self.embedding)  # [T, E]
        if self.config.embedding_scale != 1:
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype)
        for index, layer in enumerate(self.layers):
            attended = self._attend(layer, self._rms_norm(x, layer.input_norm), inputs, cache, index)
            x = x + self._rms_norm(attended, layer.attended_norm)
            fed = self._feed_forward(layer, self._rms_norm(x, layer.post_norm))
            x = x + self._rms_norm(fed, layer.fed_norm)
        last = x[inputs.sampling_indices]  # [S, E]
        return F.linear(self._rms_norm(last, self.norm), self.lm_head)  # [S, V]

    def _attend(self, layer: _Layer, x: Tensor, inputs: ModelInputs, cache: KVCache, index: int) -> Tensor:
        H, G, D = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        qkv = F.linear(x, layer.qkv, layer.qkv_bias).view(-1, H + 2 * G, D)  # [T, H + 2G, D]
        queries, new_keys = qkv[:, :H], qkv[:, H : H + G]
        normed = torch.cat([self._rms_norm(queries, layer.q_norm), self._rms_norm(new_keys, layer.k_norm)], dim=1)
        rotated = layer.rotary.rotate(normed, inputs.positions)  # [T, H + G, D]
        keys, values = cache.keys(index), cache.values(index)
        slots = inputs.attention.slot_mapping
        keys.index_copy_(0, slots, rotated[:, H:].to(keys.dtype))
        values.index_copy_(0, slots, qkv[:, H + G :].to(values.dtype))
        attended = inputs.attention.attend(
            rotated[:, :H], keys, values, scale=self.config.attention_scale, sliding_window=layer.window
        )  # [T, H, D]
        return F.linear(attended.reshape(-1, H * D), layer.o, layer.o_bias)  # [T, E]

    def _feed_forward(self, layer: _Layer, x: Tensor) -> Tensor:
        gate, up = F.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)  # [T, F] each
        is_silu = self.config.activation is Activation.SILU
        active = F.silu(gate) if is_silu else F.gelu(gate, approximate="tanh")  # [T, F]
        return F.linear(active * up, layer.down, layer.down_bias)  # [T, E]

    def _rms_norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """Over the last dimension, in fp32; `x` itself where the model has no such norm."""
        if weight is None:
            return x
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.config.rms_norm_eps).to(x.dtype)


def _take_layer(weights: Weights, index: int, config: ModelConfig, rotary: RotaryEmbedding) -> _Layer:
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
    norms = layer_norms(config)
    return _Layer(
        window=config.window(index),
        rotary=rotary,
        input_norm=take("input_layernorm.weight"),
        qkv=matrix("self_attn", attention),
        qkv_bias=join("self_attn", attention, "bias"),
        o=take("self_attn.o_proj.weight"),
        o_bias=join("self_attn", ["o_proj"], "bias"),
        q_norm=take("self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=take("self_attn.k_norm.weight") if config.qk_norm else None,
        attended_norm=take(norms.attended) if norms.attended else None,
        post_norm=take(norms.post),
        fed_norm=take(norms.fed) if norms.fed else None,
        gate_up=matrix("mlp", feed_forward),
        gate_up_bias=join("mlp", feed_forward, "bias"),
        down=take("mlp.down_proj.weight"),
        down_bias=join("mlp", ["down_proj"], "bias"),
    )
