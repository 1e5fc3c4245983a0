"""Owns the tiny random models that transformers saves for tests: one of each kind that the decoder serves."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from midstream.modelfile.resolve import ModelFiles, ModelKind

TOLERANCE = 1e-4
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 7, "num_hidden_layers": 7}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "no groups": ("Llama", {"num_key_value_heads": 4}),
    "one kv head, wide": ("Llama", {"num_key_value_heads": 1, "head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral with a window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 with biases": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "gemma3": ("Gemma3", GEMMA),
    "gemma3, far": ("Gemma3", GEMMA | {"rope_parameters": GEMMA_ROPES}),
}


def save(folder: Path, kind: str, fields: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """A random model of transformers', saved to `folder`; its biases and norms are random too."""
    import transformers

    torch.manual_seed(1)
    config_kind = getattr(transformers, f"{kind}TextConfig", None) or getattr(transformers, f"{kind}Config")
    config = config_kind(**(SIZES | fields))
    model_kind = getattr(transformers, f"{kind}ForCausalLM", None) or getattr(transformers, f"{kind}LMHeadModel")
    model = model_kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.to(dtype).save_pretrained(folder)
    return model


def saved_files(folder: Path) -> ModelFiles:
    return ModelFiles(ModelKind.FOLDER, folder, "tiny", tuple(sorted(folder.glob("*.safetensors"))))


def tokens(num_tokens: int, seed: int = 0) -> list[int]:
    """Random ids of the saved models' vocabulary."""
    return torch.randint(0, 96, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_close(got: Tensor, expected: Tensor) -> None:
    """Logits that agree to `TOLERANCE`, and are no flat ones."""
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) <= TOLERANCE
    assert float(expected.abs().max()) > 1, "logits this flat would agree whatever was computed"
