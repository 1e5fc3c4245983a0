"""The decoder against transformers: tiny random models that it saved, loaded by our loader, give its logits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from midstream.engine.batch import Batch, Row
from midstream.engine.inputs import build_inputs
from midstream.engine.kv_cache import KVCache
from midstream.engine.models.decoder import Decoder
from midstream.engine.weights.load import load_weights
from midstream.modelfile.model_config import ModelConfig, RopeKind, RopeScaling
from midstream.modelfile.read_config import read_config
from tests.engine.forward import Forward, make_decoder
from tests.engine.models import random_weights, save_folder, tiny, write_gguf
from tests.engine.saved import VARIANTS, assert_close, save, saved_files, tokens
from tests.engine.tiny import make_sequence


@dataclass(frozen=True)
class Pair:
    """One model, ours and theirs."""

    ours: Decoder
    theirs: Any

    def expected(self, token_ids: list[int]) -> Tensor:
        """transformers' logits [tokens, V]."""
        with torch.inference_mode():
            logits: Tensor = self.theirs(torch.tensor([token_ids])).logits[0]
        return logits


@pytest.fixture(scope="module", params=list(VARIANTS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    kind, fields = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("saved")
    theirs = save(folder, kind, fields)
    files = saved_files(folder)
    config = read_config(files)
    return Pair(make_decoder(config, load_weights(files, config, torch.float32)), theirs)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("chunk_size", [100, 1, 5, 16], ids=["whole", "one by one", "fives", "sixteens"])
def test_any_cut_of_a_prompt_gives_transformers_logits(pair: Pair, chunk_size: int, block_size: int) -> None:
    token_ids = tokens(53)
    [got] = Forward(pair.ours, [token_ids], block_size=block_size).run([chunk_size])
    assert_close(got, pair.expected(token_ids))


def test_a_prefill_and_then_single_tokens_give_transformers_logits(pair: Pair) -> None:
    token_ids = tokens(40, seed=2)
    forward = Forward(pair.ours, [token_ids], block_size=3)
    forward.step([31])
    [got] = forward.run([1])
    assert_close(got, pair.expected(token_ids))


def test_sequences_of_any_length_in_one_batch_give_transformers_logits(pair: Pair) -> None:
    batch = [tokens(length, seed=length) for length in (1, 9, 25, 60)]
    got = Forward(pair.ours, batch, block_size=5).run([1, 1, 7, 33])
    for logits, token_ids in zip(got, batch, strict=True):
        assert_close(logits, pair.expected(token_ids))


def test_positions_up_to_the_last_of_the_context_give_transformers_logits(pair: Pair) -> None:
    token_ids = tokens(128, seed=3)
    [got] = Forward(pair.ours, [token_ids]).run([50])
    assert_close(got, pair.expected(token_ids))


# --- GGUF ---


GGUFS = {
    "plain": tiny(),
    "biases": tiny(qkv_bias=True, o_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "one kv head, wide": tiny(num_kv_heads=1, head_dim=16),
}


@pytest.mark.parametrize("config", GGUFS.values(), ids=GGUFS.keys())
def test_a_gguf_gives_the_logits_of_the_same_weights_in_safetensors(tmp_path: Path, config: ModelConfig) -> None:
    weights = random_weights(config)
    from_folder = make_decoder(config, load_weights(save_folder(tmp_path, weights), config, torch.float32))
    gguf = write_gguf(tmp_path / "tiny.gguf", config, weights)
    gguf_config = read_config(gguf)
    assert gguf_config.interleaved_rope
    from_gguf = make_decoder(gguf_config, load_weights(gguf, gguf_config, torch.float32))
    token_ids = tokens(40)
    [expected], [got] = (Forward(model, [token_ids]).run([40]) for model in (from_folder, from_gguf))
    assert_close(got, expected)


def test_rope_factors_of_a_gguf_are_llama3_scaling(tmp_path: Path) -> None:
    theirs = save(tmp_path, "Llama", VARIANTS["llama3 rope"][1])
    files = saved_files(tmp_path)
    config = read_config(files)
    weights = load_weights(files, config, torch.float32)
    plain = 500.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    factors = plain / theirs.model.rotary_emb.inv_freq.double()
    gguf = write_gguf(tmp_path / "tiny.gguf", config, weights | {"rope_freqs.weight": factors.float()})
    gguf_config = read_config(gguf)
    assert gguf_config.rope_scaling == RopeScaling(RopeKind.FACTORS)
    model = make_decoder(gguf_config, load_weights(gguf, gguf_config, torch.float32))
    token_ids = tokens(128)
    [got] = Forward(model, [token_ids]).run([128])
    assert_close(got, Pair(model, theirs).expected(token_ids))


def test_a_batch_in_which_nobody_samples_gives_no_logits() -> None:
    config = tiny()
    seq = make_sequence(tokens(6))
    seq.block_table = [0, 1]
    cache = KVCache(num_layers=2, num_blocks=2, block_size=4, num_kv_heads=2, head_dim=8, dtype=torch.float32)
    model = make_decoder(config, random_weights(config))
    assert model.forward(build_inputs(Batch([Row(seq, 0, 3)], []), 4), cache).shape == (0, 96)
