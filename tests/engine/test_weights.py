"""Weights from files: all that the config promises, in the right shape, and nothing that has no place."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter

from midstream.engine.models.decoder import Weights
from midstream.engine.weights.gguf import GgufWeights
from midstream.engine.weights.load import expected_shapes, load_weights
from midstream.engine.weights.safetensors import SafetensorsWeights
from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.model_config import ModelConfig, RopeKind, RopeScaling
from midstream.modelfile.read_config import read_config
from midstream.modelfile.resolve import ModelFiles, ModelKind
from tests.engine.models import TINY, random_weights, save_folder, tiny, write_gguf

ALL_BIASES = tiny(qkv_bias=True, o_bias=True, mlp_bias=True)

Save = Callable[[Path, ModelConfig, Weights], ModelFiles]


def as_gguf(folder: Path, config: ModelConfig, weights: Weights) -> ModelFiles:
    return write_gguf(folder / "tiny.gguf", config, weights)


def as_safetensors(folder: Path, config: ModelConfig, weights: Weights) -> ModelFiles:
    return save_folder(folder, weights)


@pytest.fixture(params=[as_gguf, as_safetensors], ids=["gguf", "safetensors"])
def save(request: pytest.FixtureRequest) -> Save:
    saver: Save = request.param
    return saver


def loading_config(save: Save, config: ModelConfig) -> ModelConfig:
    return config if save is as_safetensors else tiny(**{**vars(config), "interleaved_rope": True})


@pytest.mark.parametrize("config", [TINY, tiny(tie_word_embeddings=True), ALL_BIASES], ids=["plain", "tied", "biases"])
def test_every_tensor_comes_back_under_its_name(tmp_path: Path, save: Save, config: ModelConfig) -> None:
    weights = random_weights(config)
    loaded = load_weights(save(tmp_path, config, weights), loading_config(save, config), torch.float32)
    assert list(loaded) == list(expected_shapes(config))
    for name, tensor in weights.items():
        assert torch.equal(loaded[name], tensor), name


def test_a_gguf_says_itself_what_it_holds(tmp_path: Path) -> None:
    weights = random_weights(ALL_BIASES)
    files = as_gguf(tmp_path, ALL_BIASES, weights)
    config = read_config(files)
    assert expected_shapes(config) == expected_shapes(ALL_BIASES)
    assert torch.equal(load_weights(files, config, torch.float32)["layers.1.self_attn.q_proj.bias"],
                       weights["layers.1.self_attn.q_proj.bias"])  # fmt: skip


def test_tensors_may_lie_in_several_files(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    names = list(weights)
    parts = [{name: weights[name] for name in names[start::3]} for start in range(3)]
    loaded = load_weights(save_folder(tmp_path, *parts), TINY, torch.float32)
    assert all(torch.equal(loaded[name], weights[name]) for name in names)


def test_weights_come_in_the_dtype_that_was_asked_for(tmp_path: Path, save: Save) -> None:
    files = save(tmp_path, TINY, random_weights(TINY))
    loaded = load_weights(files, loading_config(save, TINY), torch.bfloat16)
    norms = {name for name in loaded if "norm" in name}
    assert {loaded[name].dtype for name in norms} == {torch.float32}, "norms are multiplied in float32"
    assert {loaded[name].dtype for name in loaded.keys() - norms} == {torch.bfloat16}


def test_rope_factors_keep_their_precision(tmp_path: Path) -> None:
    config = tiny(rope_scaling=RopeScaling(RopeKind.FACTORS), interleaved_rope=True)
    weights = random_weights(config) | {"rope_freqs.weight": torch.tensor([1.0, 1.0, 3.3333333, 8.0])}
    loaded = load_weights(as_gguf(tmp_path, config, weights), config, torch.bfloat16)
    assert torch.equal(loaded["rope_freqs.weight"], weights["rope_freqs.weight"])


@pytest.mark.parametrize("name", ["norm.weight", "lm_head.weight", "layers.1.self_attn.k_proj.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, save: Save, name: str) -> None:
    weights = random_weights(TINY)
    del weights[name]
    with pytest.raises(ModelFileError, match=f"tiny: tensor {name} is missing"):
        load_weights(save(tmp_path, TINY, weights), loading_config(save, TINY), torch.float32)


@pytest.mark.parametrize("name", ["layers.0.self_attn.v_proj.bias", "layers.1.mlp.down_proj.bias"])
def test_a_missing_bias_is_named(tmp_path: Path, save: Save, name: str) -> None:
    weights = random_weights(ALL_BIASES)
    del weights[name]
    with pytest.raises(ModelFileError, match=f"tiny: tensor {name} is missing"):
        load_weights(save(tmp_path, ALL_BIASES, weights), loading_config(save, ALL_BIASES), torch.float32)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embed_tokens.weight", (95, 32)),
        ("norm.weight", (31,)),
        ("layers.0.self_attn.q_proj.weight", (31, 32)),  # no whole number of heads
        ("layers.1.mlp.gate_proj.weight", (48, 33)),
        ("layers.1.mlp.up_proj.bias", (47,)),
    ],
)
def test_a_misshapen_tensor_is_named_with_both_shapes(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, ...]
) -> None:
    weights = random_weights(ALL_BIASES)
    right = tuple(weights[name].shape)
    files = save(tmp_path, ALL_BIASES, weights | {name: torch.zeros(shape)})
    for reader in (GgufWeights, SafetensorsWeights):
        monkeypatch.setattr(reader, "stored", lambda *_: pytest.fail("read before the shapes were checked"))
    with pytest.raises(ModelFileError) as caught:
        load_weights(files, loading_config(save, ALL_BIASES), torch.float32)
    assert caught.value.message == f"tiny: tensor {name} is {shape}; its configuration needs {right}"


def test_a_tensor_that_the_decoder_would_leave_out_is_refused(tmp_path: Path, save: Save) -> None:
    weights = random_weights(ALL_BIASES)
    with pytest.raises(ModelFileError, match="has no place"):
        load_weights(save(tmp_path, TINY, weights), loading_config(save, TINY), torch.float32)


def test_what_old_files_carry_along_is_left_out(tmp_path: Path) -> None:
    config = tiny(tie_word_embeddings=True)
    weights = random_weights(config)
    extra = {"lm_head.weight": torch.zeros(96, 32), "layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    loaded = load_weights(save_folder(tmp_path, weights | extra), config, torch.float32)
    assert loaded.keys() == weights.keys()


def test_a_gguf_tensor_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_gate_inp\.weight"):
        load_weights(ModelFiles(ModelKind.GGUF, path, "tiny", (path,)), TINY, torch.float32)


def test_a_gguf_tensor_of_a_type_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    files = as_gguf(tmp_path, TINY, weights)
    info = GgufFile.open(files.path).tensors["output_norm.weight"]
    assert info.type is GGMLQuantizationType.F32
    data = bytearray(files.path.read_bytes())
    name = b"output_norm.weight"
    at = data.index(name) + len(name) + 4 + 8  # past the number of dims and the only dim
    data[at : at + 4] = GGMLQuantizationType.I32.to_bytes(4, "little")
    files.path.write_bytes(data)
    with pytest.raises(ModelFileError, match="I32"):
        load_weights(files, tiny(interleaved_rope=True), torch.float32)


def test_the_expected_shapes_follow_the_config() -> None:
    shapes = expected_shapes(ALL_BIASES)
    assert shapes["lm_head.weight"] == shapes["embed_tokens.weight"] == (96, 32)
    layer = {name.removeprefix("layers.1."): shape for name, shape in shapes.items() if name.startswith("layers.1.")}
    assert layer == {
        "input_layernorm.weight": (32,),
        "post_attention_layernorm.weight": (32,),
        "self_attn.q_proj.weight": (32, 32),
        "self_attn.q_proj.bias": (32,),
        "self_attn.k_proj.weight": (16, 32),
        "self_attn.k_proj.bias": (16,),
        "self_attn.v_proj.weight": (16, 32),
        "self_attn.v_proj.bias": (16,),
        "self_attn.o_proj.weight": (32, 32),
        "self_attn.o_proj.bias": (32,),
        "mlp.gate_proj.weight": (48, 32),
        "mlp.gate_proj.bias": (48,),
        "mlp.up_proj.weight": (48, 32),
        "mlp.up_proj.bias": (48,),
        "mlp.down_proj.weight": (32, 48),
        "mlp.down_proj.bias": (32,),
    }
    assert not any(name.endswith("bias") for name in expected_shapes(TINY))
    assert "lm_head.weight" not in expected_shapes(tiny(tie_word_embeddings=True))
    wide = expected_shapes(tiny(head_dim=16, rope_scaling=RopeScaling(RopeKind.FACTORS)))
    assert wide["layers.0.self_attn.o_proj.weight"] == (32, 64)
    assert wide["rope_freqs.weight"] == (8,)
