"""The kernels' greedy tokens are those of a plain reference that rounds as they do, on 20 prompts of all kinds.

So are the logits, to the bit. A test that failed by little would be no near miss: see `reference.py`.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from midstream.engine.weights.load import open_weights
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.resolve import ModelFiles
from midstream.modelfile.tokenizer import Tokenizer
from tests.engine.kernels.embedded import Embedded
from tests.engine.kernels.reference import Reference

pytestmark = pytest.mark.model

NUM_NEW_TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived",
    "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n<|im_start|>assistant\n",
    "Water boils at 100 degrees. Water freezes at",
    "<|im_start|>system\nYou answer in one sentence.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n"
    "<|im_start|>assistant\n",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "<tool_call>\n{",
    "1, 1, 2, 3, 5, 8, 13,",
    "SELECT name, COUNT(*) FROM orders",
    "Die Hauptstadt von Deutschland ist",
    "La lune est plus petite que",
    "Dear Sir or Madam,\n\nI am writing to",
    "# Shopping list\n\n- apples\n- bread\n-",
    "Q: What is 12 times 12?\nA:",
    "the the the the the the the",
    "<html>\n<body>\n<h1>",
    "In 1969, Neil Armstrong and Buzz Aldrin",
    "🙂 ñandú 東京 \t\t ...",
    "a",
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """On a machine that is busy otherwise, threads that wait for each other take many times as long as one."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


Logits = Callable[[tuple[int, ...], int], Tensor]


@pytest.fixture(scope="module")
def reference(files: ModelFiles, config: ModelConfig) -> Logits:
    """The reference's logits by the tokens and how many of the last are wanted, each computed once."""
    return cache(torch.inference_mode()(Reference(config, open_weights(files, config)).logits))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    assert len(PROMPTS) == 20
    return [tokenizer.encode_frames(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def embedded(library: ctypes.CDLL, files: ModelFiles, config: ModelConfig) -> Iterator[Embedded]:
    embedded = Embedded(library, files, config)
    yield embedded
    embedded.close()


@pytest.fixture(scope="module")
def answers(embedded: Embedded, prompts: list[list[int]]) -> list[list[int]]:
    return embedded.greedy(prompts, NUM_NEW_TOKENS)


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_the_greedy_tokens_are_the_references(
    reference: Logits, prompts: list[list[int]], answers: list[list[int]], number: int
) -> None:
    prompt, answer = prompts[number], answers[number]
    assert len(answer) == NUM_NEW_TOKENS
    # Every token is the best after all before it, so by induction the answer is the reference's own.
    logits = reference((*prompt, *answer[:-1]), NUM_NEW_TOKENS)  # [tokens, V]
    assert logits.argmax(-1).tolist() == answer


def test_the_logits_are_the_references_to_the_bit(
    reference: Logits, embedded: Embedded, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    prompt, answer = prompts[0], answers[0]
    token_ids = (*prompt, *answer[:-1])
    assert torch.equal(embedded.logits(list(token_ids))[-NUM_NEW_TOKENS:], reference(token_ids, NUM_NEW_TOKENS))
