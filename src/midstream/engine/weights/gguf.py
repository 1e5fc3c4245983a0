"""Owns the way from a GGUF file's tensors to Hugging Face names and to rotary pairs as halves."""

from gguf import GGMLQuantizationType

from midstream.engine.models.decoder import Shapes
from midstream.engine.weights.stored import Bytes, Stored
from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import ModelConfig

_TOP_LEVEL = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "rope_freqs": "rope_freqs",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Where attention's and the MLP's outputs have norms too, the names mean other places.
_IN_SANDWICH = _IN_BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class GgufWeights:
    """Raises ModelFileError for a tensor that belongs to no model of this configuration."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if config.interleaved_rope else {}
        parts = _IN_SANDWICH if config.sandwich_norm else _IN_BLOCK
        self._names = {_target_name(name, parts): name for name in file.tensors}

    @property
    def shapes(self) -> Shapes:
        return {target: self._file.tensors[name].shape for target, name in self._names.items()}

    def kind(self, name: str) -> GGMLQuantizationType:
        return self._file.tensors[self._names[name]].type

    def stored(self, name: str) -> Stored:
        info = self._file.tensors[self._names[name]]
        rows = info.shape[0] if len(info.shape) > 1 else 1
        raw = self._file.raw(info.name).reshape(rows, -1)
        num_heads = self._heads.get(name.split(".")[-2])
        if num_heads is not None:
            raw = _to_halves(raw.reshape(info.shape[0], -1), num_heads).reshape(rows, -1)
        return Stored(f"{self._file.path}: tensor {info.name!r}", info.type, info.shape, raw)


def _target_name(name: str, parts: dict[str, str]) -> str:
    prefix, _, rest = name.partition(".")
    if prefix in _TOP_LEVEL and rest == "weight":
        return f"{_TOP_LEVEL[prefix]}.weight"
    index, _, tail = rest.partition(".")
    part, _, kind = tail.partition(".")
    if prefix == "blk" and index.isdecimal() and part in parts and kind in ("weight", "bias"):
        return f"layers.{index}.{parts[part]}.{kind}"
    raise ModelFileError(f"tensor {name!r} has no place in a model of this kind; this file cannot be served")


def _to_halves(raw: Bytes, num_heads: int) -> Bytes:
    """Undo llama.cpp's row order of q and k: pairs (0, 1), (2, 3) … of a head become its two halves."""
    rows = raw.shape[0]
    return raw.reshape(num_heads, rows // num_heads // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)
