"""From options to an engine: the KV budget, and faults that the operator can mend."""

from pathlib import Path

import pytest
import torch

from midstream.engine.build import KVBudget, build_engine, build_runner, plan_kv
from midstream.engine.kv_cache import KVShape
from midstream.engine.watch import plain_watch
from midstream.errors import ConfigError, ModelFileError
from midstream.messages import AddRequest, EngineOptions, SamplingParams
from midstream.modelfile.resolve import ModelFiles, ModelKind
from midstream.modelfile.tokenizer import Tokenizer
from tests.engine.models import tiny
from tests.modelfile.ggufs import write_llama
from tests.support.ports import ListPort

BLOCK_BYTES = 16 * KVShape.of(tiny()).num_values * 4


def options(**changes: object) -> EngineOptions:
    fields: dict[str, object] = {
        "model": "tiny",
        "dtype": "float32",
        "kv_cache_bytes": 100 * BLOCK_BYTES,
        "block_size": 16,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 256,
        "max_model_len": None,
        "num_threads": 1,
    }
    return EngineOptions(**(fields | changes))  # type: ignore[arg-type]


def plan(**changes: object) -> KVBudget:
    return plan_kv(options(**changes), KVShape.of(tiny(max_position_embeddings=1000)), torch.float32)


def test_the_budget_is_spent_on_whole_blocks() -> None:
    assert plan() == KVBudget(num_blocks=100, max_model_len=1000)
    assert plan(kv_cache_bytes=10 * BLOCK_BYTES - 1) == KVBudget(num_blocks=9, max_model_len=9 * 16)


def test_the_context_is_the_one_that_was_asked_for() -> None:
    assert plan(max_model_len=500) == KVBudget(num_blocks=100, max_model_len=500)
    assert plan(max_model_len=160, kv_cache_bytes=10 * BLOCK_BYTES).max_model_len == 160


def test_half_the_bytes_a_number_is_twice_the_blocks() -> None:
    budget = plan_kv(options(), KVShape.of(tiny()), torch.bfloat16)
    assert budget.num_blocks == 200


def test_a_context_that_the_budget_cannot_hold_is_told_with_value_limit_and_remedy() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(max_model_len=161, kv_cache_bytes=10 * BLOCK_BYTES)
    message = caught.value.message
    assert "max_model_len is 161" in message
    assert f"kv_cache_bytes of {10 * BLOCK_BYTES} holds 160 tokens" in message
    assert f"raise kv_cache_bytes to {11 * BLOCK_BYTES}" in message
    assert plan(max_model_len=161, kv_cache_bytes=11 * BLOCK_BYTES).num_blocks == 11, "the remedy helps"


def test_a_budget_without_a_block_is_told_with_the_least_that_helps() -> None:
    with pytest.raises(ConfigError, match=f"raise kv_cache_bytes to {BLOCK_BYTES}"):
        plan(kv_cache_bytes=BLOCK_BYTES - 1)
    assert plan(kv_cache_bytes=BLOCK_BYTES).max_model_len == 16


def test_a_context_longer_than_the_models_own_is_told_with_value_and_limit() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 1001; the model was made for 1000; lower it"):
        plan(max_model_len=1001)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> ModelFiles:
    """A model with zero weights, a context of 64, and three rows more than the tokenizer has ids."""
    return zero_model(tmp_path_factory.mktemp("tiny"), tokenizer.vocab_size + 3)


def zero_model(folder: Path, vocab_size: int) -> ModelFiles:
    path = write_llama(folder / "tiny.gguf", vocab_size, lambda writer: None)
    return ModelFiles(ModelKind.GGUF, path, "tiny", (path,))


def test_an_engine_is_built_whose_context_is_shorter_than_a_step_has_tokens(
    files: ModelFiles, tokenizer: Tokenizer
) -> None:
    given = options(max_model_len=20, max_num_batched_tokens=256)
    runner, budget = build_runner(given, files, tokenizer)
    assert budget.max_model_len == 20
    port = ListPort()
    engine = build_engine(given, port, runner, budget, tokenizer, plain_watch)
    port.commands.append(
        AddRequest(1, tokenizer.encode("Hello there"), SamplingParams(max_tokens=100, ignore_eos=True))
    )
    while not port.num_waits:
        engine.step()
    assert port.outputs[-1].finished is not None
    assert engine.scheduler.blocks.num_free == budget.num_blocks


def test_rows_that_no_token_stands_for_are_never_sampled(files: ModelFiles, tokenizer: Tokenizer) -> None:
    given = options()
    runner, budget = build_runner(given, files, tokenizer)
    port = ListPort()
    engine = build_engine(given, port, runner, budget, tokenizer, plain_watch)
    # All logits are equal: a mask over everything else leaves the ids at the end.
    ends = tuple(range(tokenizer.vocab_size - 1))
    params = SamplingParams(max_tokens=30, min_tokens=30, stop_token_ids=ends)
    port.commands.append(AddRequest(1, [5], params))
    while not port.num_waits:
        engine.step()
    token_ids = [token_id for output in port.outputs for token_id in output.token_ids]
    assert token_ids == [tokenizer.vocab_size - 1] * 30


def test_a_tokenizer_with_ids_beyond_the_models_rows_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelFileError) as caught:
        build_runner(options(), zero_model(tmp_path, 1000), tokenizer)
    assert f"ids up to {tokenizer.vocab_size - 1}" in caught.value.message
    assert "rows for 1000" in caught.value.message
