"""Owns serving any other architecture: transformers' own model, its attention over our paged cache.

All rows of a batch go through the model as one sequence of tokens; only attention knows where each begins. So every
layer has to be attention and work token by token besides: that is probed at load, and what is not so is refused.
"""

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging

from midstream.engine.kv_cache import KVCache, KVShape
from midstream.engine.models.decoder import ModelInputs
from midstream.errors import ModelFileError

_NAME = "midstream_paged"
_UNKNOWN_TERMS = ("softcap", "s_aux", "position_bias", "head_mask")
_DEFAULT_MAX_POSITIONS = 2048


class _Sink(Protocol):
    """Takes each layer's new keys and values and attends."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """query [T, H, D], key and value [T, G, D]; returns [T, H, D]."""


class TransformersModel:
    """Forward of a `transformers` model under the runner's protocol."""

    def __init__(self, model: Any, kv_shape: KVShape) -> None:
        self._model = model
        self.kv_shape = kv_shape
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype) -> "TransformersModel":
        """Raises ModelFileError for an architecture that transformers does not know or that this way cannot serve."""
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        AttentionInterface.register(_NAME, _attend)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=_NAME, local_files_only=True, use_safetensors=True
            )
        except (ValueError, ImportError, KeyError, OSError) as error:
            raise ModelFileError(f"{folder}: transformers cannot load this model: {error}") from error
        model.eval()
        return cls(model, _probe(model, folder))

    @torch.inference_mode()
    def forward(self, inputs: ModelInputs, cache: KVCache) -> Tensor:
        """Write the new tokens' KV and return the logits [S, V] of the rows that sample."""
        wanted = inputs.sampling_indices
        logits = _run(self._model, inputs.token_ids, inputs.positions, _Paged(inputs, cache), wanted)  # [S or T, V]
        return logits if logits.shape[0] == wanted.shape[0] else logits[wanted]


def _run(model: Any, token_ids: Tensor, positions: Tensor, sink: _Sink, wanted: Tensor) -> Tensor:
    output = model(
        input_ids=token_ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=wanted,
        midstream_sink=sink,
    )
    logits: Tensor = output.logits[0]
    return logits


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **terms: Any) -> Any:
    """The attention function that transformers' models call: query [1, H, T, D], key and value [1, G, T, D]."""
    sink: _Sink | None = terms.get("midstream_sink")
    if sink is None:
        raise ModelFileError("its attention is not handed what the server adds; it cannot be served")
    unknown = next((term for term in _UNKNOWN_TERMS if terms.get(term) is not None), None)
    if unknown is not None:
        raise ModelFileError(f"its attention has a {unknown}, which is not supported")
    scale = terms.get("scaling") or query.shape[-1] ** -0.5
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))  # [T, heads, D] each
    return sink.attend(module.layer_idx, q, k, v, scale, terms.get("sliding_window")).unsqueeze(0), None


class _Paged:
    def __init__(self, inputs: ModelInputs, cache: KVCache) -> None:
        self._attention = inputs.attention
        self._cache = cache

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        keys, values = self._cache.keys(layer), self._cache.values(layer)
        keys.index_copy_(0, self._attention.slot_mapping, key.to(keys.dtype))
        values.index_copy_(0, self._attention.slot_mapping, value.to(values.dtype))
        return self._attention.attend(query, keys, values, scale=scale, sliding_window=window)


class _Probe:
    """Computes nothing; keeps what each layer's keys and values look like."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, ...]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        if value.shape != key.shape:
            raise ModelFileError(f"its keys are {tuple(key.shape[1:])} and its values {tuple(value.shape[1:])}")
        self.shapes[layer] = tuple(key.shape[1:])
        return torch.zeros_like(query)


@torch.inference_mode()
def _probe(model: Any, folder: Path) -> KVShape:
    """Run two tokens and see that every layer attends, all with heads of one shape."""
    text = model.config.get_text_config()
    probe, positions = _Probe(), torch.arange(2)
    try:
        _run(model, torch.zeros_like(positions), positions, probe, positions[-1:])
    except ModelFileError as error:
        raise ModelFileError(f"{folder}: {error.message}") from error
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{folder}: transformers' {text.model_type} model cannot be run here: {error}") from error
    num_layers = text.num_hidden_layers
    if probe.shapes.keys() != set(range(num_layers)) or len(set(probe.shapes.values())) != 1:
        raise ModelFileError(
            f"{folder}: {len(probe.shapes)} of {num_layers} layers of this {text.model_type} model are attention that "
            "the server can see, and they must be all of them, with heads of one shape; it cannot be served"
        )
    num_kv_heads, head_dim = probe.shapes[0]
    return KVShape(num_layers, num_kv_heads, head_dim, getattr(text, "max_position_embeddings", _DEFAULT_MAX_POSITIONS))
