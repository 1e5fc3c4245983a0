"""Every pre-tokenizer type splits as llama.cpp's does, over the embedded model's vocabulary."""

from pathlib import Path

import pytest
from gguf import GGUFWriter

from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.pretokenizers import PRE_TYPES, PreType, pre_type
from midstream.modelfile.tokenizer import Tokenizer
from tests.modelfile.corpus import odd_strings
from tests.modelfile.ggufs import write_llama
from tests.modelfile.llamacpp import LlamaCppTokenizer

_names: dict[PreType, str] = {}
for _name, _kind in PRE_TYPES.items():
    _names.setdefault(_kind, _name)
DISTINCT = tuple(_names.values())


@pytest.mark.model
@pytest.mark.parametrize("name", DISTINCT)
def test_a_type_splits_as_llama_cpp_does(name: str, gguf: GgufFile, tmp_path: Path) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list(gguf.metadata["tokenizer.ggml.tokens"])
        writer.add_token_types(gguf.metadata["tokenizer.ggml.token_type"].tolist())
        writer.add_token_merges(gguf.metadata["tokenizer.ggml.merges"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    path = write_llama(tmp_path / "x.gguf", len(gguf.metadata["tokenizer.ggml.tokens"]), add)
    tokenizer = Tokenizer.from_gguf(GgufFile.open(path))
    with LlamaCppTokenizer(path) as reference:
        for text in odd_strings(500, seed=3):
            assert tokenizer.encode(text) == reference.ids(text, parses_special=False), ascii(text)


def test_an_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(ModelFileError, match=r"'klingon'.*qwen2.*smollm"):
        pre_type("klingon")
