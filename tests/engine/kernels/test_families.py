"""Every kind of model that the decoder serves, on the kernels: what the torch path gives over the same fp16 cache."""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from midstream.engine.batch import Batch, Row
from midstream.engine.kernels.cpu.native_model import NativeModel, Sizes
from midstream.engine.weights.load import load_weights, open_weights
from midstream.engine.weights.packed import load_packed, unpackable
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.read_config import read_config
from midstream.modelfile.resolve import ModelFiles
from tests.engine.forward import Forward, make_decoder
from tests.engine.saved import VARIANTS, save, saved_files, tokens
from tests.engine.tiny import make_sequence

SIZES = Sizes(num_blocks=64, block_size=5, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=128, num_threads=2)
# The kernels want widths that are multiples of 32.
WIDE = {"hidden_size": 128, "intermediate_size": 96}
TOLERANCE = 5e-3
"""Of logits around 10: sums in another order now and then round a key or value to the next fp16 number."""


@pytest.fixture(scope="module", params=list(VARIANTS))
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    kind, fields = VARIANTS[request.param]
    folder: Path = tmp_path_factory.mktemp("saved")
    save(folder, kind, WIDE | fields)
    return saved_files(folder)


def next_chunk(row: Row, size: int) -> Row:
    start = row.start + row.num_new
    return replace(row, start=start, num_new=min(size, row.seq.num_tokens - start))


def last_logits(model: NativeModel, sequences: list[list[int]], chunk: int) -> list[torch.Tensor]:
    """The logits [V] after each sequence's last token, computed side by side in chunks of `chunk` tokens."""
    rows, first_block = [], 0
    for token_ids in sequences:
        seq = make_sequence(token_ids)
        num_blocks = -(-len(token_ids) // SIZES.block_size)
        seq.block_table = list(range(first_block, first_block + num_blocks))[::-1]
        first_block += num_blocks
        rows.append(Row(seq, 0, 0))
    found: dict[int, torch.Tensor] = {}
    while len(found) < len(rows):
        rows = [
            replace(
                row, start=row.start + row.num_new, num_new=min(chunk, row.seq.num_tokens - row.start - row.num_new)
            )
            for row in rows
        ]
        batch = Batch([row for row in rows if row.num_new > 0], [])
        for row, logits in zip(batch.sampling_rows, model.forward(batch), strict=True):
            found[id(row.seq)] = torch.from_numpy(logits.copy())
    return [found[id(row.seq)] for row in rows]


@pytest.mark.parametrize("chunk", [100, 1, 7], ids=["whole", "one by one", "sevens"])
def test_a_batch_of_any_lengths_gives_the_torch_paths_logits(
    library: ctypes.CDLL, files: ModelFiles, chunk: int
) -> None:
    config = read_config(files)
    assert unpackable(config) is None
    model = NativeModel(library, config, load_packed(open_weights(files, config), config), SIZES)
    decoder = make_decoder(config, load_weights(files, config, torch.float32))
    batch = [tokens(length, seed=length) for length in (1, 9, 25, 60)]
    expected = Forward(decoder, batch, block_size=5, kv_dtype=torch.float16).run([100] * 4)
    got = last_logits(model, batch, chunk)
    model.close()
    for ours, theirs in zip(got, expected, strict=True):
        assert float((ours - theirs[-1]).abs().max()) <= TOLERANCE
        assert float(theirs.abs().max()) > 1, "logits this flat would agree whatever was computed"


def rounded(name: str, tensor: torch.Tensor, kind: GGMLQuantizationType | None) -> torch.Tensor:
    """What `tensor` is once it has been rounded as `--quantize` rounds it."""
    if tensor.ndim < 2 or kind is None:
        return tensor
    target = GGMLQuantizationType.Q8_0 if name in ("embed_tokens.weight", "lm_head.weight") else kind
    return torch.from_numpy(dequantize(quantize(tensor.numpy(), target), target))


@pytest.mark.parametrize(
    ("dtype", "quantize_to", "limit"),
    [
        (torch.float32, GGMLQuantizationType.Q8_0, 0.02),
        (torch.float32, GGMLQuantizationType.Q4_0, 0.02),
        (torch.bfloat16, None, 1e-5),
        (torch.float16, None, 1e-5),
    ],
    ids=["q8", "q4", "bfloat16", "float16"],
)
def test_weights_of_any_type_predict_what_the_same_values_do_in_fp32(
    library: ctypes.CDLL, tmp_path: Path, dtype: torch.dtype, quantize_to: GGMLQuantizationType | None, limit: float
) -> None:
    """`limit`: KL divergence in nats; with integer weights, activations have 8 bits too."""
    save(tmp_path, "Llama", WIDE | {"initializer_range": 0.1}, dtype)
    files = saved_files(tmp_path)
    config = read_config(files)
    token_ids = tokens(40, seed=1)
    weights = load_weights(files, config, torch.float32)
    same_values = {name: rounded(name, tensor, quantize_to) for name, tensor in weights.items()}
    [exact] = Forward(make_decoder(config, same_values), [token_ids]).run([100])
    packed = load_packed(open_weights(files, config), config, quantize_to)
    model = NativeModel(library, config, packed, SIZES)
    [got] = last_logits(model, [token_ids], 100)
    model.close()
    p, q = torch.log_softmax(exact[-1], -1), torch.log_softmax(got, -1)
    assert float((p.exp() * (p - q)).sum()) < limit


def weight_types(config: ModelConfig, files: ModelFiles, quantize_to: GGMLQuantizationType | None) -> set[str]:
    packed = load_packed(open_weights(files, config), config, quantize_to)
    layer = packed.layers[0]
    return {linear.type.name for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)} | {
        f"ends {packed.embedding.type.name}"
    }


def test_the_ends_of_a_model_keep_eight_bits(tmp_path: Path) -> None:
    save(tmp_path, "Llama", WIDE)
    files = saved_files(tmp_path)
    config = read_config(files)
    assert weight_types(config, files, GGMLQuantizationType.Q4_0) == {"Q4_0", "ends Q8_0"}
    assert weight_types(config, files, GGMLQuantizationType.Q8_0) == {"Q8_0", "ends Q8_0"}
    assert weight_types(config, files, None) == {"F32", "ends F32"}
