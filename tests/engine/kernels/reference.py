"""Owns what the kernels must compute of a plain Llama, to the bit: one sequence, no cache, no blocks, no threads.

What a linear multiplies is rounded to 8 bits, 32 values under one scale; keys and values are fp16; all else is
float32. Rounding turns a last bit into a whole step, and four such steps into as much noise as rounding makes at
all: two references that add in different orders agree no better than either does with fp32. So this one adds in the
order that the kernels' headers promise: linears block by block, attention position by position, norms and scores in
eight lanes that are added pairwise at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from midstream.engine.weights.stored import Stored, WeightFile
from midstream.modelfile.model_config import Activation, ModelConfig

LANES = 8


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c rounded once: in float64 the product of two float32 is exact."""
    return torch.addcmul(c.double(), a.double(), b.double()).float()


def sum_lanes(lanes: Tensor) -> Tensor:
    """The eight of the last dimension, added pairwise."""
    pairs = lanes[..., 0::2] + lanes[..., 1::2]
    quarters = pairs[..., 0::2] + pairs[..., 1::2]
    return quarters[..., 0] + quarters[..., 1]


def exponential(x: Tensor) -> Tensor:
    """Cephes' expf; 0 below -87.3."""

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float32)

    clamped = x.clamp(-87.3, 88.0)
    n = (clamped * number(1.44269504088896341)).round()
    r = fma(-n, number(0.693359375), clamped)
    r = fma(-n, number(-2.12194440e-4), r)
    p = number(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, number(factor))
    p = fma(p, r * r, r + 1)
    two_to_the_n = ((n.int() + 127) << 23).view(torch.float32)  # torch's own power is not exact
    return torch.where(x < number(-87.3), 0, p * two_to_the_n)


@dataclass(frozen=True)
class Rounded:
    """Activations as a linear takes them."""

    integers: Tensor  # [T, K] float32
    scale: Tensor  # [T, K / 32]


def rounded(x: Tensor) -> Rounded:
    blocks = x.view(len(x), -1, 32)  # [T, K / 32, 32]
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(largest > 0, torch.tensor(127.0) / largest, 0)
    return Rounded((blocks * inverse).round().flatten(-2), (largest / 127).squeeze(-1))


@dataclass(frozen=True)
class Matrix:
    """A file's blocks of 32: value = scale * integer + minimum."""

    integers: Tensor  # [rows, K] float32
    scale: Tensor  # [rows, K / 32]
    minimum: Tensor | None  # [rows, K / 32]

    @classmethod
    def read(cls, stored: Stored) -> "Matrix":
        rows = len(stored.raw)
        if stored.kind is GGMLQuantizationType.Q8_0:
            blocks = stored.raw.reshape(rows, -1, 34)
            scale, integers = blocks[..., :2], blocks[..., 2:].view(np.int8)
        else:
            assert stored.kind is GGMLQuantizationType.Q4_1
            blocks = stored.raw.reshape(rows, -1, 20)
            scale, integers = blocks[..., :4], np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1)
        numbers = torch.from_numpy(scale.copy().view(np.float16).astype(np.float32))  # [rows, K / 32, 1 or 2]
        minimum = numbers[..., 1] if numbers.shape[-1] == 2 else None
        return cls(torch.from_numpy(integers.astype(np.float32)).flatten(1), numbers[..., 0], minimum)

    def floats(self, rows: Sequence[int]) -> Tensor:
        assert self.minimum is None
        blocks = self.integers[list(rows)].view(len(rows), -1, 32)
        return (blocks * self.scale[list(rows)].unsqueeze(-1)).flatten(1)

    def times(self, x: Rounded) -> Tensor:
        """[T, rows]. The products of a block's integers are exact in float32, in any order."""
        shape = (len(x.integers), len(self.integers))
        products, scales, total = torch.empty(shape), torch.empty(shape), torch.zeros(shape)
        # Room for fma()'s float64: to take it anew for each block is most of the time.
        a, b, sums = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
        for block in range(self.scale.shape[1]):
            columns = slice(32 * block, 32 * block + 32)
            scale = x.scale[:, block, None]  # [T, 1]
            q = x.integers[:, columns]  # [T, 32]
            torch.mm(q, self.integers[:, columns].T, out=products)
            torch.mul(scale, self.scale[:, block], out=scales)
            total.copy_(sums.addcmul_(a.copy_(products), b.copy_(scales)))
            sums.copy_(total)
            if self.minimum is not None:
                added = scale * q.sum(dim=1, keepdim=True)  # [T, 1]
                total.copy_(sums.addcmul_(self.minimum[:, block].double(), added.double()))
                sums.copy_(total)
        return total


class Reference:
    """A Llama without biases or rope scaling, of Q4_1 and Q8_0 matrices."""

    def __init__(self, config: ModelConfig, file: WeightFile) -> None:
        assert config.architecture == "llama"
        assert config.activation is Activation.SILU
        assert config.rope_scaling is None
        assert config.tie_word_embeddings
        self._config = config
        names = [name for name, shape in file.shapes.items() if len(shape) > 1]
        self._matrices = {name: Matrix.read(file.stored(name)) for name in names}
        self._norms = {name: torch.from_numpy(file.stored(name).floats().copy()) for name in file.shapes.keys() - names}

    def logits(self, token_ids: Sequence[int], num_last: int) -> Tensor:
        """After each of the last `num_last` tokens: [num_last, V]."""
        embedding = self._matrices["embed_tokens.weight"]
        x = embedding.floats(token_ids)  # [T, E]
        for index in range(self._config.num_layers):
            prefix = f"layers.{index}."
            x = x + self._attention(self._norm(x, f"{prefix}input_layernorm.weight"), f"{prefix}self_attn.")
            x = x + self._mlp(self._norm(x, f"{prefix}post_attention_layernorm.weight"), f"{prefix}mlp.")
        return embedding.times(rounded(self._norm(x[-num_last:], "norm.weight")))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return self._matrices[f"{name}.weight"].times(rounded(x))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        squares = torch.zeros(len(x), LANES)
        for lanes in torch.split(x, LANES, dim=1):
            squares = fma(lanes, lanes, squares)
        mean = sum_lanes(squares)[:, None] / x.shape[1]
        mean = mean + torch.tensor(self._config.rms_norm_eps, dtype=torch.float32)
        inverse = 1 / mean.double().sqrt().float()  # torch's own root of a float32 may be a bit off
        return x * inverse * self._norms[name]

    def _mlp(self, x: Tensor, prefix: str) -> Tensor:
        gate, up = self._linear(x, f"{prefix}gate_proj"), self._linear(x, f"{prefix}up_proj")
        return self._linear(gate / (1 + exponential(-gate)) * up, f"{prefix}down_proj")

    def _attention(self, x: Tensor, prefix: str) -> Tensor:
        H, G, D, T = self._config.num_heads, self._config.num_kv_heads, self._config.head_dim, len(x)
        q = self._rotated(self._linear(x, f"{prefix}q_proj").view(T, H, D))
        k = self._rotated(self._linear(x, f"{prefix}k_proj").view(T, G, D)).half().float()
        v = self._linear(x, f"{prefix}v_proj").view(T, G, D).half().float()
        k, v = (part.repeat_interleave(H // G, dim=1) for part in (k, v))  # [T, H, D]
        weights = self._weights(q, k)  # [H, T, T]
        mixed = torch.zeros(T, H, D)
        for position in range(T):
            mixed = fma(weights[:, :, position].T.unsqueeze(-1), v[position], mixed)
        return self._linear(mixed.view(T, H * D), f"{prefix}o_proj")

    def _weights(self, q: Tensor, k: Tensor) -> Tensor:
        """What each query gives to each position: [H, T, T]."""
        T, H, D = q.shape
        lanes = torch.zeros(H, T, T, LANES)
        for at in range(0, D, LANES):
            queries, keys = (part[..., at : at + LANES].transpose(0, 1) for part in (q, k))  # [H, T, 8] each
            lanes = fma(keys.unsqueeze(1), queries.unsqueeze(2), lanes)
        scores = sum_lanes(lanes) * torch.tensor(self._config.attention_scale, dtype=torch.float32)
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -1e30)
        scores = torch.nn.functional.pad(scores, (0, -T % LANES), value=-1e30)
        powers = exponential(scores - scores.amax(dim=-1, keepdim=True))
        total = torch.zeros(H, T, LANES)
        for part in torch.split(powers, LANES, dim=-1):
            total = total + part
        return powers[..., :T] * (1 / sum_lanes(total)).unsqueeze(-1)

    def _rotated(self, x: Tensor) -> Tensor:
        """x [T, heads, D]: pair (i, i + D / 2) turned by position * theta^(-2i / D)."""
        half = x.shape[-1] // 2
        frequencies = self._config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(len(x), dtype=torch.float64), frequencies).unsqueeze(1)  # [T, 1, D / 2]
        cos, sin = angles.cos().float(), angles.sin().float()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([fma(a, cos, -(b * sin)), fma(b, cos, a * sin)], dim=-1)
