"""Architectures that are not ours: transformers' own logits over our paged cache, or a refusal that says why."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from midstream.engine.build import build_engine, build_runner
from midstream.engine.models.transformers_model import TransformersModel
from midstream.engine.runner import TorchRunner
from midstream.engine.watch import plain_watch
from midstream.errors import ModelFileError
from midstream.messages import AddRequest, EngineOptions, SamplingParams
from midstream.modelfile.resolve import resolve
from midstream.modelfile.tokenizer import Tokenizer
from tests.engine.forward import Forward
from tests.engine.saved import assert_close, save, tokens
from tests.support.ports import ListPort

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
# Parallel branches, partial rotation, other norms, learned positions, experts, layers without rotation.
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo2": ("Olmo2", {}),
    "olmo3 with a window": ("Olmo3", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"pad_token_id": 0, "sliding_window": None}),
    "phi3 with a window": ("Phi3", {"pad_token_id": 0, "sliding_window": 7}),
    "gpt2": ("GPT2", {"n_inner": 48}),
    "gpt neox": ("GPTNeoX", {}),
    "granite": ("Granite", {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "embedding_multiplier": 3.0}),
    "smollm3": ("SmolLM3", {"pad_token_id": 0, "no_rope_layer_interval": 2}),
    "cohere2 with a window": ("Cohere2", {"pad_token_id": 0, "sliding_window": 7, "logit_scale": 1.0}),
    "gemma2 without caps": ("Gemma2", {"attn_logit_softcapping": None, "head_dim": 16, "sliding_window": 7}),
    "qwen3 moe": ("Qwen3Moe", MOE),
}


@dataclass(frozen=True)
class Pair:
    """One model, over our cache and as transformers runs it alone."""

    ours: TransformersModel
    theirs: Any

    def expected(self, token_ids: list[int]) -> Tensor:
        """transformers' logits [tokens, V]."""
        with torch.inference_mode():
            logits: Tensor = self.theirs(torch.tensor([token_ids])).logits[0]
        return logits


def make_pair(folder: Path, kind: str, fields: dict[str, Any]) -> Pair:
    theirs = save(folder, kind, fields)
    return Pair(TransformersModel.load(folder, torch.float32), theirs)


@pytest.fixture(scope="module", params=list(SERVED))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("saved"), *SERVED[request.param])


@pytest.mark.parametrize("chunk_size", [100, 1, 5, 16], ids=["whole", "one by one", "fives", "sixteens"])
def test_any_cut_of_a_prompt_gives_transformers_logits(pair: Pair, chunk_size: int) -> None:
    token_ids = tokens(53)
    [got] = Forward(pair.ours, [token_ids], block_size=3).run([chunk_size])
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


# --- what this way cannot serve ---


MAMBA_HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a state, no attention": ("Mamba", {"state_size": 4}, "attend 0 times"),
    "a hybrid of convolution": ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "attend 1 times"),
    "a hybrid of states": ("Bamba", MAMBA_HEADS | {"attn_layer_indices": [1]}, "attend 1 times"),
    "soft caps": ("Gemma2", {"head_dim": 16}, "softcap"),
    "sinks": ("GptOss", {"num_local_experts": 4, "head_dim": 8}, "s_aux"),
    "values of another size": ("DeepseekV3", {}, r"its keys are \(4, 192\) and its values \(4, 128\)"),
    "an attention of its own": (
        "GPTNeo",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]},
        "attend 0 times",
    ),
    "positions in attention": ("Falcon", {}, "attend 0 times"),
}


@pytest.mark.parametrize(("kind", "fields", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_model_that_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, kind: str, fields: dict[str, Any], reason: str
) -> None:
    save(tmp_path, kind, fields)
    with pytest.raises(ModelFileError, match=reason) as caught:
        TransformersModel.load(tmp_path, torch.float32)
    assert str(tmp_path) in caught.value.message
    assert "midstream_paged" not in caught.value.message, "a name of ours is no reason"


def test_an_unknown_architecture_is_refused_with_its_name(tmp_path: Path) -> None:
    save(tmp_path, "Olmo2", {})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "nobody_knows"}))
    with pytest.raises(ModelFileError, match="nobody_knows"):
        TransformersModel.load(tmp_path, torch.float32)


# Each passes where every layer attends once with heads of one shape, and computes something else all the same.
OTHERWISE: dict[str, tuple[str, dict[str, Any]]] = {
    "a state beside attention": ("FalconH1", MAMBA_HEADS | {"mamba_d_ssm": 64, "mamba_chunk_size": 8}),
    "two attentions a layer": ("DiffLlama", {}),
    "attention in chunks": (
        "Llama4",
        {"intermediate_size_mlp": 48, "num_local_experts": 2, "head_dim": 8, "attention_chunk_size": 8},
    ),
    "a window only in the mask": ("Phimoe", {"num_local_experts": 4, "sliding_window": 7}),
    "attention that looks ahead": ("Bert", {}),
}


@pytest.mark.parametrize(("kind", "fields"), OTHERWISE.values(), ids=OTHERWISE.keys())
def test_a_model_that_is_more_than_causal_attention_is_refused_or_right(
    tmp_path: Path, kind: str, fields: dict[str, Any]
) -> None:
    try:
        pair = make_pair(tmp_path, kind, {"pad_token_id": 0} | fields)
    except ModelFileError:
        return
    token_ids = tokens(53)
    [got] = Forward(pair.ours, [token_ids]).run([16])
    assert_close(got, pair.expected(token_ids))


def test_rotation_that_grows_with_the_context_is_refused_or_the_same_in_any_batch(tmp_path: Path) -> None:
    longrope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    fields = {"pad_token_id": 0, "rope_parameters": longrope, "original_max_position_embeddings": 32}
    try:
        ours = make_pair(tmp_path, "Phi3", fields).ours
    except ModelFileError:
        return
    short, long = tokens(9, seed=1), tokens(60, seed=2)
    [alone] = Forward(ours, [short]).run([100])
    beside, _ = Forward(ours, [short, long]).run([100, 100])
    assert_close(beside, alone)
    [whole], [cut] = (Forward(ours, [long]).run([size]) for size in (100, 16))
    assert_close(cut, whole)


# --- through the engine ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with a row for each byte, and a tokenizer that knows bytes only."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE(vocab={text: i for i, text in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    return tmp_path


def options(folder: Path) -> EngineOptions:
    return EngineOptions(
        model=str(folder),
        dtype="float32",
        kv_cache_bytes=1 << 20,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=8,
        max_model_len=None,
        num_threads=1,
    )


def test_the_engine_serves_such_a_folder_through_transformers(folder: Path) -> None:
    theirs = save(folder, "Olmo2", {"vocab_size": 260})
    tokenizer, given = Tokenizer.from_folder(folder), options(folder)
    with structlog.testing.capture_logs() as logs:
        runner, budget = build_runner(given, resolve(str(folder)), tokenizer)
    assert isinstance(runner, TorchRunner)
    assert isinstance(runner.model, TransformersModel)
    assert budget.max_model_len == 128
    assert "through transformers' own model" in logs[0]["why"]
    port, prompt = ListPort(), tokenizer.encode("a prompt of several chunks")
    engine = build_engine(given, port, runner, budget, tokenizer, plain_watch)
    port.commands.append(AddRequest(1, prompt, SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)))
    while not port.num_waits:
        engine.step()
    answer = [token_id for output in port.outputs for token_id in output.token_ids]
    assert len(answer) == 20
    with torch.inference_mode():
        logits: Tensor = theirs(torch.tensor([prompt + answer[:-1]])).logits[0]  # [tokens, V]
    assert logits[len(prompt) - 1 :, : tokenizer.vocab_size].argmax(-1).tolist() == answer


def test_a_tokenizer_with_ids_beyond_such_a_models_rows_is_refused(folder: Path) -> None:
    save(folder, "Olmo2", {})
    with pytest.raises(ModelFileError, match="rows for 96"):
        build_runner(options(folder), resolve(str(folder)), Tokenizer.from_folder(folder))
