"""The embedded model: transformers' greedy tokens, however the scheduler gets there."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from midstream.engine.blocks import BlockPool
from midstream.engine.kv_cache import KVCache
from midstream.engine.loop import Engine
from midstream.engine.models.decoder import Decoder, Weights
from midstream.engine.runner import TorchRunner
from midstream.engine.scheduler import Scheduler
from midstream.engine.watch import plain_watch
from midstream.engine.weights.load import load_weights
from midstream.messages import AddRequest, SamplingParams, TokenCounts
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.read_config import read_config
from midstream.modelfile.resolve import resolve
from midstream.modelfile.tokenizer import Tokenizer
from tests.support.ports import ListPort

pytestmark = pytest.mark.model

NUM_NEW_TOKENS = 64
MAX_MODEL_LEN = 160
BLOCK_SIZE = 16
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived",
    "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n<|im_start|>assistant\n",
    "Water boils at 100 degrees. Water freezes at",
]


class Served:
    """The real loop, scheduler and runner over the embedded model, stepped by the test."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, *, num_blocks: int, max_num_batched_tokens: int) -> None:
        config = model.config
        cache = KVCache(
            num_layers=config.num_layers,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=torch.float32,
        )
        eos = tuple(tokenizer.eos_token_ids)
        self.port = ListPort()
        self.scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE), max_num_seqs=8, max_num_batched_tokens=max_num_batched_tokens
        )
        self._engine = Engine(
            self.port,
            self.scheduler,
            TorchRunner(model, cache, vocab_size=tokenizer.vocab_size, eos_token_ids=eos),
            make_watch=plain_watch,
            token_bytes=tokenizer.all_token_bytes(),
            eos_token_ids=eos,
            max_model_len=MAX_MODEL_LEN,
        )

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Greedy tokens of all prompts, served together."""
        self.port.outputs.clear()
        params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
        self.port.commands += [AddRequest(i, token_ids, params) for i, token_ids in enumerate(prompts)]
        while self.port.commands or self._engine.sequences:
            self._engine.step()
        outputs = self.port.outputs
        return [
            [token_id for output in outputs if output.request_id == i for token_id in output.token_ids]
            for i in range(len(prompts))
        ]

    def counts(self, request_id: int) -> TokenCounts:
        return [output.counts for output in self.port.outputs if output.request_id == request_id][-1]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """On a machine that is busy otherwise, threads that wait for each other take many times as long as one."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return read_config(resolve())


@pytest.fixture(scope="module")
def weights(config: ModelConfig) -> Weights:
    return load_weights(resolve(), config, torch.float32)


@pytest.fixture(scope="module")
def model(config: ModelConfig, weights: Weights) -> Decoder:
    return Decoder(config, dict(weights), max_model_len=MAX_MODEL_LEN)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode_frames(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def answers(model: Decoder, tokenizer: Tokenizer, prompts: list[list[int]]) -> list[list[int]]:
    """What the engine gives when nothing is cut, reused or preempted."""
    served = Served(model, tokenizer, num_blocks=64, max_num_batched_tokens=256)
    answers = served.generate(prompts, NUM_NEW_TOKENS)
    assert served.scheduler.num_preemptions == 0
    return answers


def transformers_model(config: ModelConfig, weights: Weights) -> Any:
    """transformers' Llama around the very tensors of `weights`: nothing is initialised and nothing copied."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tie_word_embeddings,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(theirs)
    state = {f"model.{name}": tensor for name, tensor in weights.items()}
    state["lm_head.weight"] = weights["embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.model.rotary_emb = LlamaRotaryEmbedding(theirs)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def test_the_greedy_tokens_are_transformers(
    config: ModelConfig, weights: Weights, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    theirs = transformers_model(config, weights)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == NUM_NEW_TOKENS
        # Every token is the best after all before it, so by induction the answer is the greedy one.
        with torch.inference_mode():
            logits: Tensor = theirs(torch.tensor([prompt + answer[:-1]])).logits[0]  # [tokens, V]
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == answer


def test_the_answers_make_sense(tokenizer: Tokenizer, answers: list[list[int]]) -> None:
    # Both sides read the same dequantised weights: had these been garbled, both would have agreed on garbage.
    assert tokenizer.decode(answers[0]).startswith(" Paris")
    assert "fibonacci(n-1)" in tokenizer.decode(answers[1]).replace(" ", "")


def test_chunked_prefill_gives_the_same_tokens(
    model: Decoder, tokenizer: Tokenizer, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    served = Served(model, tokenizer, num_blocks=64, max_num_batched_tokens=7)
    assert served.generate(prompts, 24) == [answer[:24] for answer in answers]


def test_prefix_reuse_gives_the_same_tokens(
    model: Decoder, tokenizer: Tokenizer, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    served = Served(model, tokenizer, num_blocks=64, max_num_batched_tokens=256)
    served.generate(prompts, 8)
    longer = [prompt + answer[:20] for prompt, answer in zip(prompts, answers, strict=True)]
    assert served.generate(longer, 24) == [answer[20:44] for answer in answers]
    for request_id, prompt in enumerate(prompts):
        assert served.counts(request_id).cached == len(prompt) + 8 - 1, "whole blocks and the part of one"


def test_preemption_gives_the_same_tokens(
    model: Decoder, tokenizer: Tokenizer, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    served = Served(model, tokenizer, num_blocks=10, max_num_batched_tokens=256)
    assert served.generate(prompts, 40) == [answer[:40] for answer in answers]
    assert served.scheduler.num_preemptions > 0
