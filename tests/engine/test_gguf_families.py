"""GGUF files of Qwen 2, Qwen 3 and Gemma 3 give the logits of the same weights in a Hugging Face folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from midstream.engine.models.decoder import Weights
from midstream.engine.weights.load import load_weights
from midstream.errors import ModelFileError
from midstream.modelfile.read_config import read_config
from tests.engine.forward import Forward, make_decoder
from tests.engine.gguf_families import write_family_gguf
from tests.engine.saved import save, saved_files

GEMMA = {
    "head_dim": 16,
    "query_pre_attn_scalar": 16,  # GGUF does not carry it: it is the head's size in all but the largest
    "sliding_window": 7,
    "num_hidden_layers": 7,
}
ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
FAR_ROPES = ROPES | {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}
FAMILIES: dict[str, tuple[str, str, dict[str, Any], float | None]] = {
    "qwen2": ("qwen2", "Qwen2", {}, None),
    "qwen2, tied": ("qwen2", "Qwen2", {"tie_word_embeddings": True}, None),
    "qwen3": ("qwen3", "Qwen3", {"head_dim": 16}, None),
    "qwen3, one kv head": ("qwen3", "Qwen3", {"head_dim": 16, "num_key_value_heads": 1}, None),
    "gemma3": ("gemma3", "Gemma3", GEMMA | {"rope_parameters": ROPES}, None),
    "gemma3, far": ("gemma3", "Gemma3", GEMMA | {"rope_parameters": FAR_ROPES}, 8.0),
}


def stored(folder: Path) -> Weights:
    """The tensors as the folder's file has them, before our loader."""
    return {name.removeprefix("model."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_gives_transformers_logits(tmp_path: Path, family: str) -> None:
    architecture, kind, fields, factor = FAMILIES[family]
    theirs = save(tmp_path, kind, fields)
    folder_config = read_config(saved_files(tmp_path))
    path = tmp_path / "tiny.gguf"
    files = write_family_gguf(path, architecture, folder_config, stored(tmp_path), linear_rope_factor=factor)
    config = read_config(files)
    assert config.architecture == architecture
    model = make_decoder(config, load_weights(files, config, torch.float32))
    token_ids = torch.randint(0, 96, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    [got] = Forward(model, [token_ids]).run([17])
    with torch.inference_mode():
        expected = theirs(torch.tensor([token_ids])).logits[0]
    assert float((got - expected).abs().max()) <= 1e-4
    assert float(expected.abs().max()) > 1, "logits this flat would agree whatever was computed"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_gives_the_configuration_of_the_folder(tmp_path: Path, family: str) -> None:
    architecture, kind, fields, factor = FAMILIES[family]
    save(tmp_path, kind, fields)
    folder = read_config(saved_files(tmp_path))
    path = tmp_path / "tiny.gguf"
    gguf = read_config(write_family_gguf(path, architecture, folder, stored(tmp_path), linear_rope_factor=factor))
    named = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
    forms = ("qkv_bias", "o_bias", "mlp_bias", "qk_norm", "sandwich_norm", "tie_word_embeddings", "activation")
    numbers = ("rope_theta", "local_rope_theta", "attention_scale", "embedding_scale", "sliding_window")
    for field in (*named, *forms, *numbers):
        assert getattr(gguf, field) == pytest.approx(getattr(folder, field)), field
    for layer in range(folder.num_layers):
        assert gguf.window(layer) == folder.window(layer)
        assert gguf.has_local_rope(layer) == folder.has_local_rope(layer)
    assert gguf.rope_scaling == folder.rope_scaling
    assert not gguf.interleaved_rope


PARTS = {
    "qwen2": "layers.1.self_attn.k_proj.bias",
    "qwen3": "layers.1.self_attn.k_norm.weight",
    "gemma3": "layers.1.pre_feedforward_layernorm.weight",
}


@pytest.mark.parametrize(("family", "missing"), PARTS.items())
def test_a_gguf_that_lacks_a_part_of_its_family_is_refused(tmp_path: Path, family: str, missing: str) -> None:
    architecture, kind, fields, _ = FAMILIES[family]
    save(tmp_path, kind, fields)
    weights = stored(tmp_path)
    del weights[missing]
    config = read_config(saved_files(tmp_path))
    files = write_family_gguf(tmp_path / "tiny.gguf", architecture, config, weights)
    with pytest.raises(ModelFileError, match=f"{missing} is missing"):
        load_weights(files, read_config(files), torch.float32)
