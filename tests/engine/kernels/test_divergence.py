"""How far the kernels' predictions are from fp32, beside llama.cpp's on the same file: its rounding is the bar."""

import ctypes
import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from midstream.engine.weights.load import load_weights
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.resolve import ModelFiles
from midstream.modelfile.tokenizer import Tokenizer
from tests.engine.forward import Forward, make_decoder
from tests.engine.kernels.embedded import Embedded

pytestmark = pytest.mark.model

TOP = 2000
"""Tokens of llama.cpp's answer that are compared one by one, over 99% of the probability; the rest is one."""
TEXT = """<|im_start|>user
Tell me something about the moon, and write a short program that prints its age.<|im_end|>
<|im_start|>assistant
The Moon is the Earth's only natural satellite. It is about a quarter as wide as the Earth, and it always shows us
the same face, because it turns once on its axis in the time that it takes to go round us. People first walked on it
in July 1969, when Neil Armstrong and Buzz Aldrin landed the Eagle in the Sea of Tranquility. Its age is measured
from the rocks that they brought back. Here is the program:

```python
def main() -> None:
    age_years = 4_510_000_000
    print(f"The Moon is about {age_years:,} years old.")


if __name__ == "__main__":
    main()
```

Run it with Python 3. Should I explain how the age of a rock is measured?<|im_end|>
"""


@pytest.fixture(scope="module")
def token_ids(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode_frames(TEXT)


@pytest.fixture(scope="module")
def exact(files: ModelFiles, config: ModelConfig, token_ids: list[int]) -> Tensor:
    """Log-probabilities [T, V] in fp32."""
    decoder = make_decoder(config, load_weights(files, config, torch.float32), max_model_len=len(token_ids))
    [logits] = Forward(decoder, [token_ids], block_size=16).run([len(token_ids)])
    return torch.log_softmax(logits, -1)


@pytest.fixture(scope="module")
def ours(library: ctypes.CDLL, files: ModelFiles, config: ModelConfig, token_ids: list[int]) -> Iterator[Tensor]:
    """Log-probabilities [T, V] of the kernels."""
    embedded = Embedded(library, files, config)
    yield torch.log_softmax(embedded.logits(token_ids), -1)
    embedded.close()


@dataclass(frozen=True)
class Top:
    """The best tokens after each token, and their log-probabilities: [T, TOP] each."""

    token_ids: Tensor
    logprobs: Tensor


class LlamaCpp:
    """llama.cpp's server in this process, its CPU kernels on two threads."""

    def __init__(self, path: Path) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 512
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cache_ram_mib = 0
        params.verbosity = -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(2, len(os.sched_getaffinity(0)))
        params.warmup = params.fit_params = params.enable_chat_template = False
        self._server = xllamacpp.Server(params)
        self._connection = http.client.HTTPConnection(self._server.listening_address.removeprefix("http://"))

    def close(self) -> None:
        self._connection.close()
        del self._server

    def top(self, token_ids: list[int]) -> Top:
        """One request a token; each finds all tokens before its last one in the cache."""
        answers = [self._after(token_ids[: end + 1]) for end in range(len(token_ids))]
        return Top(
            torch.tensor([[entry["id"] for entry in answer] for answer in answers]),
            torch.tensor([[entry["logprob"] for entry in answer] for answer in answers]),
        )

    def _after(self, token_ids: list[int]) -> list[dict[str, float]]:
        body = {"prompt": token_ids, "n_predict": 1, "n_probs": TOP, "temperature": 0, "cache_prompt": True}
        self._connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(self._connection.getresponse().read())
        assert answer["tokens_evaluated"] == len(token_ids), "it put a token of its own in front"
        entries: list[dict[str, float]] = answer["completion_probabilities"][0]["top_logprobs"]
        return entries


@pytest.fixture(scope="module")
def theirs(files: ModelFiles, token_ids: list[int]) -> Top:
    pytest.importorskip("xllamacpp", exc_type=ImportError)
    server = LlamaCpp(files.path)
    top = server.top(token_ids)
    server.close()
    return top


def divergence(exact: Tensor, top_ids: Tensor, logprobs: Tensor) -> Tensor:
    """KL divergence [T] in nats of `logprobs` [T, TOP] of `top_ids` from `exact` [T, V], all others as one token."""
    p, q = with_rest(exact.gather(1, top_ids)), with_rest(logprobs)
    return (p.exp() * (p - q)).sum(-1)


def with_rest(logprobs: Tensor) -> Tensor:
    rest = (1 - logprobs.double().exp().sum(-1, keepdim=True)).clamp(min=1e-9).log()
    return torch.cat([logprobs.double(), rest], dim=-1)


def test_the_mean_divergence_from_fp32_is_at_most_llama_cpps(exact: Tensor, ours: Tensor, theirs: Top) -> None:
    assert len(exact) > 200
    ids = theirs.token_ids
    assert exact.gather(1, ids).exp().sum(-1).mean().item() > 0.99
    of_ours = divergence(exact, ids, ours.gather(1, ids)).mean().item()
    of_theirs = divergence(exact, ids, theirs.logprobs).mean().item()
    assert 0 < of_theirs < 0.1, "this is not the same model"
    assert of_ours <= of_theirs
