"""Hyperparameters from both kinds of files, and the numbers that cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from midstream.errors import ModelFileError
from midstream.modelfile.folder_config import config_from_folder
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.gguf_config import config_from_gguf
from midstream.modelfile.model_config import ModelConfig, RopeKind, RopeScaling
from tests.modelfile.ggufs import write_llama

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def load(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return config_from_folder(folder)


@pytest.mark.model
def test_the_embedded_model_is_a_small_llama(gguf: GgufFile) -> None:
    config = config_from_gguf(gguf)
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.head_dim, config.vocab_size, config.rope_theta) == (64, 49152, 100_000.0)
    assert config.tie_word_embeddings
    assert config.interleaved_rope
    assert config.eos_token_ids == (2,)


def test_a_folder_gives_the_same_fields(folder: Path) -> None:
    config = load(folder)
    assert (config.head_dim, config.rope_theta, config.rope_scaling) == (16, 10_000.0, None)
    assert not config.interleaved_rope
    assert not config.tie_word_embeddings
    assert config.sliding_window is None


def test_generation_config_decides_the_ends(folder: Path) -> None:
    assert load(folder, {"eos_token_id": [5, 6]}).eos_token_ids == (5, 6)


def test_rope_scaling_is_read_from_the_old_and_the_new_key(folder: Path) -> None:
    expected = RopeScaling(RopeKind.LLAMA3, 8.0, 1.0, 4.0, 8192)
    old = load(folder, rope_theta=500_000.0, rope_scaling=LLAMA3_ROPE)
    new = load(folder, rope_parameters={**LLAMA3_ROPE, "rope_theta": 500_000.0})
    assert old.rope_scaling == new.rope_scaling == expected
    assert old.rope_theta == new.rope_theta == 500_000.0
    assert load(folder, rope_scaling={"type": "linear", "factor": 2}).rope_scaling == RopeScaling(RopeKind.LINEAR, 2.0)


def test_a_mistral_window_is_kept_unless_it_is_null(folder: Path) -> None:
    assert load(folder, model_type="mistral").sliding_window == 4096
    assert load(folder, model_type="mistral", sliding_window=128).sliding_window == 128
    assert load(folder, model_type="mistral", sliding_window=None).sliding_window is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "'bert'; supported are llama, mistral"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000"),
        ({"hidden_size": -64}, "hidden_size -64"),
        ({"hidden_size": "64"}, "hidden_size '64'"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": True}, "hidden_size True"),
        ({"num_key_value_heads": 3}, "4 heads for 3 KV heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads 8"),
        ({"head_dim": 15}, "head size 15"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps nan"),
        ({"eos_token_id": 100}, "from 0 to 99"),
        ({"hidden_act": "gelu"}, "silu, swish, gelu_pytorch_tanh are supported"),
        ({"quantization_config": {"bits": 4}}, "quantised .gguf"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "lacks low_freq_factor"),
        ({"rope_scaling": 3}, "an object is needed"),
    ],
)
def test_an_impossible_value_is_named(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(folder, **changes)


def test_a_config_that_is_no_object_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ModelFileError, match="not an object"):
        config_from_folder(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.rope.dimension_count", 8, "must be equal"),
        ("llama.expert_count", 8, "mixture of experts"),
        ("llama.attention.key_length", 7, "head size 7"),
    ],
)
def test_a_gguf_that_is_not_served_is_refused(tmp_path: Path, key: str, value: int, message: str) -> None:
    path = write_llama(tmp_path / "x.gguf", 3, lambda writer: writer.add_uint32(key, value))
    with pytest.raises(ModelFileError, match=message):
        config_from_gguf(GgufFile.open(path))


def test_linear_scaling_of_a_gguf_is_read(tmp_path: Path) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", "linear")
        writer.add_float32("llama.rope.scaling.factor", 4.0)

    config = config_from_gguf(GgufFile.open(write_llama(tmp_path / "x.gguf", 3, add)))
    assert config.rope_scaling == RopeScaling(RopeKind.LINEAR, 4.0)
