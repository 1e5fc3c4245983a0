"""Owns serving any other architecture: transformers' own model, its attention over our paged cache.

All rows of a batch go through the model as one sequence of tokens; only attention knows where each begins. So every
layer has to attend once, to what came before, and work token by token besides. That is tried out at load: a short text
in two chunks has to give what transformers gives for the whole, and what does not is refused.
"""

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging

from midstream.engine.attention.reference import RaggedAttention, RowContext
from midstream.engine.kv_cache import KVCache, KVShape
from midstream.engine.models.decoder import ModelInputs
from midstream.errors import ModelFileError

_NAME = "midstream_paged"
_UNKNOWN_TERMS = ("softcap", "s_aux", "position_bias", "head_mask")
_DEFAULT_MAX_POSITIONS = 2048
_PROBE_TOKENS, _PROBE_CUT = 48, 29
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Of the largest logit."""


class _Sink(Protocol):
    """Takes each layer's new keys and values and attends."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """query [T, H, D], key and value [T, G, D]; returns [T, H, D]."""


class TransformersModel:
    """Forward of a `transformers` model under the runner's protocol."""

    def __init__(self, model: Any, kv_shape: KVShape) -> None:
        self._model = model
        self.kv_shape = kv_shape
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype) -> "TransformersModel":
        """Raises ModelFileError for an architecture that transformers does not know or that this way cannot serve."""
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        AttentionInterface.register(_NAME, _attend)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="eager", local_files_only=True, use_safetensors=True
            )
            model.eval()
        except (ValueError, ImportError, KeyError, OSError, AttributeError) as error:
            raise ModelFileError(f"{folder}: transformers cannot load this model: {error}") from error
        try:
            return _tried_out(model)
        except ModelFileError as error:
            kind = model.config.get_text_config().model_type
            raise ModelFileError(f"{folder}: this {kind} model cannot be served: {error.message}") from error

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
    """Computes nothing; keeps what each layer's keys look like, and the windows that were asked for."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, tuple[int, ...]]] = []
        self.windows: set[int | None] = set()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        if value.shape != key.shape:
            raise ModelFileError(f"its keys are {tuple(key.shape[1:])} and its values {tuple(value.shape[1:])}")
        self.shapes.append((layer, tuple(key.shape[1:])))
        self.windows.add(window)
        return torch.zeros_like(query)


@torch.inference_mode()
def _tried_out(model: Any) -> TransformersModel:
    """The model over our cache, if it gives there what it gives on its own. Raises ModelFileError where it does not."""
    text = model.config.get_text_config()
    _check_config(text)
    dice = torch.Generator().manual_seed(0)
    token_ids = torch.randint(0, text.vocab_size, (_PROBE_TOKENS,), generator=dice)
    try:
        model.set_attn_implementation(_NAME)
        ours = TransformersModel(model, _kv_shape(model, text))
        model.set_attn_implementation("eager")
        expected = model(input_ids=token_ids.unsqueeze(0), use_cache=False).logits[0].float()  # [T, V]
        model.set_attn_implementation(_NAME)
        got = _in_two_chunks(ours, token_ids).float()  # [T, V]
    except KeyError as error:
        raise ModelFileError(f"its attention is its own, and cannot be replaced ({error})") from error
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ModelFileError(f"it fails: {error}") from error
    worst = float((got - expected).abs().max() / expected.abs().max())
    if not worst < _TOLERANCE[model.dtype]:
        raise ModelFileError(
            f"over the server's cache its logits are {worst:.2g} of the largest one off: it keeps or looks at more "
            "than the keys and values before a token"
        )
    return ours


def _check_config(text: Any) -> None:
    """Raises ModelFileError for what a short text would not show."""
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)}
    for kind in kinds & {"longrope", "dynamic"}:
        raise ModelFileError(f"its rotary scaling {kind} follows the longest text of a batch")
    if getattr(text, "attention_chunk_size", None):
        raise ModelFileError("it attends in chunks")


def _kv_shape(model: Any, text: Any) -> KVShape:
    probe, positions = _Probe(), torch.arange(2)
    _run(model, torch.zeros_like(positions), positions, probe, positions[-1:])
    layers = [layer for layer, _ in probe.shapes]
    if layers != list(range(text.num_hidden_layers)) or len({shape for _, shape in probe.shapes}) != 1:
        raise ModelFileError(
            f"its {text.num_hidden_layers} layers attend {len(layers)} times; each must once, with heads of one shape"
        )
    has_window = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"]
    if has_window and "sliding_attention" in kinds and probe.windows == {None}:
        raise ModelFileError(f"its window of {text.sliding_window} is not told to its attention")
    num_kv_heads, head_dim = probe.shapes[0][1]
    max_positions = getattr(text, "max_position_embeddings", _DEFAULT_MAX_POSITIONS)
    return KVShape(text.num_hidden_layers, num_kv_heads, head_dim, max_positions)


def _in_two_chunks(ours: TransformersModel, token_ids: Tensor) -> Tensor:
    """The logits [T, V], computed over a small cache as the engine would."""
    shape = ours.kv_shape
    cache = KVCache(
        num_layers=shape.num_layers,
        num_blocks=len(token_ids),
        block_size=1,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=ours.dtype,
    )
    slots = torch.arange(len(token_ids)).flip(0)
    parts = []
    for begin, end in ((0, _PROBE_CUT), (_PROBE_CUT, len(token_ids))):
        rows = [RowContext(0, end - begin, slots[:end])]
        positions = torch.arange(begin, end)
        attention = RaggedAttention(slots[begin:end], rows)
        inputs = ModelInputs(token_ids[begin:end], positions, attention, torch.arange(end - begin))
        parts.append(ours.forward(inputs, cache))
    return torch.cat(parts)
