"""Tokenizers of a Hugging Face folder give the ids of the library that wrote them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer

from midstream.errors import ModelFileError
from midstream.modelfile.tokenizer import Tokenizer
from tests.modelfile.corpus import odd_strings

BPE = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
TEXTS = list(odd_strings(400, seed=8))


def byte_level() -> FastTokenizer:
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    fast.train_from_iterator([text.replace("<", "") for text in TEXTS], trainer)
    return fast


def sentencepiece(pre: str) -> FastTokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    fast = FastTokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if pre == "prepend":
        fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=pre, split=False)
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=["<unk>", *byte_tokens], show_progress=False, limit_alphabet=100
    )
    fast.train_from_iterator([text.replace("<", "") for text in TEXTS], trainer)
    spec = json.loads(fast.to_str())
    spec["added_tokens"] = [entry for entry in spec["added_tokens"] if entry["content"] == "<unk>"]
    return FastTokenizer.from_str(json.dumps(spec))


def save(folder: Path, fast: FastTokenizer, config: dict[str, Any] | None = None) -> FastTokenizer:
    fast.add_special_tokens(["<|im_start|>", "<|im_end|>", "<s>"])
    fast.add_tokens([AddedToken("<tool_call>", normalized=False)])
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {}))
    return fast


def reference(fast: FastTokenizer, text: str) -> list[int]:
    return list(fast.encode(text, add_special_tokens=False).ids)


def test_byte_level_ids_are_the_librarys(folder: Path) -> None:
    fast = save(folder, byte_level())
    tokenizer = Tokenizer.from_folder(folder)
    for text in [*TEXTS, "<tool_call>\n{}", "a<|im_start|><tool_call>b"]:
        assert tokenizer.encode_frames(text) == reference(fast, text), ascii(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text.encode(errors="replace").decode()


@pytest.mark.parametrize("pre", ["prepend", "first", "always", "never"])
def test_sentencepiece_ids_are_the_librarys(folder: Path, pre: str) -> None:
    fast = save(folder, sentencepiece(pre))
    tokenizer = Tokenizer.from_folder(folder)
    for text in [*TEXTS, "<s>a b<|im_end|>c", "x<tool_call>y", " <s> "]:
        assert tokenizer.encode_frames(text) == reference(fast, text), ascii(text)


def test_plain_text_never_holds_an_added_token(folder: Path) -> None:
    fast = save(folder, byte_level())
    tokenizer = Tokenizer.from_folder(folder)
    for text in ("<tool_call>", "<|im_end|>", "x<s>y"):
        assert not set(tokenizer.added_tokens.values()) & set(tokenizer.encode(text))
        assert tokenizer.encode_frames(text) == reference(fast, text)
    assert tokenizer.token_bytes(tokenizer.added_tokens["<tool_call>"]) == b"<tool_call>"
    assert tokenizer.token_bytes(tokenizer.added_tokens["<s>"]) == b""


def test_a_word_that_is_an_added_token_stays_plain_where_merges_are_ignored(folder: Path) -> None:
    spec = json.loads(byte_level().to_str())
    spec["model"]["ignore_merges"] = True
    spec["model"]["vocab"]["magic"] = len(spec["model"]["vocab"])
    fast = FastTokenizer.from_str(json.dumps(spec))
    fast.add_special_tokens(["magic"])
    save(folder, fast)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.added_tokens["magic"] not in tokenizer.encode("magic")
    assert tokenizer.decode(tokenizer.encode("magic")) == "magic"


def test_bos_and_ends_come_from_the_configurations(folder: Path) -> None:
    fast = byte_level()
    fast.add_special_tokens(["<s>"])
    bos = fast.token_to_id("<s>")
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    save(folder, fast, {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.bos_token_id == bos
    assert tokenizer.add_bos
    assert tokenizer.eos_token_ids == (7, 8, tokenizer.added_tokens["<|im_end|>"])
    assert tokenizer.encode_frames("a") == reference(fast, "a")


def test_added_tokens_that_strip_or_stand_alone_match_as_the_librarys(folder: Path) -> None:
    fast = byte_level()
    fast.add_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<end>", rstrip=True)])
    fast.add_tokens([AddedToken("word", single_word=True)])
    save(folder, fast)
    tokenizer = Tokenizer.from_folder(folder)
    for text in ("a  <mask> b", "a <end>  b", "a word b", "swordfish words word."):
        assert tokenizer.encode_frames(text) == reference(fast, text), text


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "not a tokenizer"),
        ({"model": {"type": "Unigram"}}, "'Unigram'; BPE is supported"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, "without byte-level"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": [], "byte_fallback": True}},
            "ids outside",
        ),
        ({"model": {"type": "BPE", "vocab": [], "merges": 3}}, "not a tokenizer"),
        (
            {
                "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
                "pre_tokenizer": {"type": "ByteLevel"},
            },
            "refused by the tokenizers library",
        ),
    ],
)
def test_another_kind_is_refused(folder: Path, spec: dict[str, Any], message: str) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_folder(folder)
