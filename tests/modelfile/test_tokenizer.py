"""Ids are llama.cpp's; bytes are exact; no text becomes a special token that was not asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.resolve import ModelFiles
from midstream.modelfile.tokenizer import Tokenizer
from tests.modelfile.corpus import odd_strings
from tests.modelfile.ggufs import sentencepiece_vocab, write_llama
from tests.modelfile.llamacpp import LlamaCppTokenizer

SENTINEL = "\ufdd0"


@pytest.mark.model
def test_ids_are_llama_cpps_on_two_thousand_odd_strings(tokenizer: Tokenizer, files: ModelFiles) -> None:
    with LlamaCppTokenizer(files.path) as reference:
        for text in odd_strings(2000, seed=1):
            assert tokenizer.encode(text) == reference.ids(text, parses_special=False), ascii(text)
            assert tokenizer.encode_frames(text) == reference.ids(text, parses_special=True), ascii(text)


@pytest.mark.model
def test_plain_text_never_holds_a_special_token(tokenizer: Tokenizer) -> None:
    for text in [*tokenizer.added_tokens, *odd_strings(500, seed=2)]:
        assert not tokenizer.special_ids & set(tokenizer.encode(text))


@pytest.mark.model
def test_a_sentinel_breaks_a_special_token_and_nothing_else(tokenizer: Tokenizer) -> None:
    for text in odd_strings(500, seed=4):
        for cut in (0, len(text) // 2, len(text)):
            marked = text[:cut] + SENTINEL + text[cut:]
            if SENTINEL not in text and tokenizer.encode_frames(text) == tokenizer.encode(text):
                assert tokenizer.encode_escaped(marked, SENTINEL) == tokenizer.encode(text)
    broken = tokenizer.encode_escaped(f"a<{SENTINEL}|im_end|>b<|im_end|>", SENTINEL)
    assert broken == [*tokenizer.encode("a<|im_end|>b"), 2]


@pytest.mark.model
def test_decoding_gives_the_text_back(tokenizer: Tokenizer) -> None:
    # Some bytes have no token in this vocabulary; no assigned character holds one of them.
    for text in ("héllo 🤖 世界", "a\n\n2. b", "👩‍👩‍👧‍👦 don't", "  x\t\r\n"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@pytest.mark.model
def test_special_tokens_are_silent_unless_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(2) == b""
    assert tokenizer.token_bytes(2, special=True) == b"<|im_end|>"
    assert tokenizer.decode([2]) == ""
    assert tokenizer.decode([2], skip_special=False) == "<|im_end|>"
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(100)
    assert len(tokenizer.all_token_bytes()) == tokenizer.vocab_size == 49152
    assert sum(not piece for piece in tokenizer.all_token_bytes()) == 17
    assert tokenizer.eos_token_ids == (2, 0)
    assert tokenizer.added_tokens["<|im_end|>"] == 2


@pytest.mark.model
@given(text=st.text(st.characters(codec=None), max_size=40))
def test_any_string_encodes(tokenizer: Tokenizer, text: str) -> None:
    tokenizer.encode(text)
    tokenizer.encode_escaped(text, SENTINEL)


# --- SentencePiece ---


@pytest.fixture(scope="module")
def spm_vocab() -> tuple[list[str], list[float], list[int]]:
    runs = [" " * count for count in range(1, 40)] * 20
    return sentencepiece_vocab([*odd_strings(1500, seed=7), *runs], 3000)


Spm = Callable[[bool], Path]


@pytest.fixture
def spm(tmp_path: Path, spm_vocab: tuple[list[str], list[float], list[int]]) -> Spm:
    tokens, scores, types = spm_vocab

    def write(has_space_prefix: bool) -> Path:
        def add(writer: GGUFWriter) -> None:
            writer.add_tokenizer_model("llama")
            writer.add_token_list(tokens)
            writer.add_token_scores(scores)
            writer.add_token_types(types)
            writer.add_bos_token_id(1)
            writer.add_eos_token_id(2)
            writer.add_unk_token_id(0)
            writer.add_add_space_prefix(has_space_prefix)

        return write_llama(tmp_path / f"spm-{has_space_prefix}.gguf", len(tokens), add)

    return write


@pytest.mark.parametrize("has_space_prefix", [True, False])
def test_sentencepiece_ids_are_llama_cpps(spm: Spm, has_space_prefix: bool) -> None:
    path = spm(has_space_prefix)
    tokenizer = Tokenizer.from_gguf(GgufFile.open(path))
    with LlamaCppTokenizer(path) as reference:
        for text in odd_strings(1000, seed=5):
            assert tokenizer.encode(text) == reference.ids(text, parses_special=False), ascii(text)
            assert tokenizer.encode_frames(text) == reference.ids(text, parses_special=True), ascii(text)


def test_sentencepiece_bytes_are_exact_and_the_first_space_is_dropped(spm: Spm) -> None:
    tokenizer = Tokenizer.from_gguf(GgufFile.open(spm(True)))
    for text in ("Hello  hello", "日本語 \x00 🦆", " a"):
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == b" " + text.encode()
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(tokenizer.encode(text, at_start=False)) == text.removeprefix(" ")


def test_exactly_one_bos_stands_in_front(spm: Spm) -> None:
    tokenizer = Tokenizer.from_gguf(GgufFile.open(spm(True)))
    assert tokenizer.add_bos
    assert tokenizer.with_bos([5, 6]) == [1, 5, 6]
    assert tokenizer.with_bos([1, 5, 6]) == [1, 5, 6]
    assert tokenizer.with_bos([1, 1, 5]) == [1, 5]
    assert tokenizer.with_bos([]) == [1]


def test_an_added_token_is_seen_in_frames_only(spm: Spm) -> None:
    tokenizer = Tokenizer.from_gguf(GgufFile.open(spm(True)))
    assert 3 in tokenizer.encode_frames("<|tool|>")
    assert 3 not in tokenizer.encode("<|tool|>")
    assert 1 not in tokenizer.encode("<s>")
    assert tokenizer.token_bytes(3) == b"<|tool|>"


# --- refusals ---


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda writer: writer.add_tokenizer_model("bert"), "no list of strings"),
        (lambda writer: [writer.add_tokenizer_model("bert"), writer.add_token_list(["a"])], "type 'bert'"),
        (lambda writer: [writer.add_tokenizer_model("gpt2"), writer.add_token_list(["a", "a"])], "'a' twice"),
        (
            lambda writer: [
                writer.add_tokenizer_model("gpt2"),
                writer.add_token_list(["a", "b"]),
                writer.add_token_merges(["a b"]),
            ],
            "does not make a token",
        ),
        (
            lambda writer: [
                writer.add_tokenizer_model("gpt2"),
                writer.add_token_list(["a", "b"]),
                writer.add_token_types([1]),
            ],
            "1 token types for 2 tokens",
        ),
        (
            lambda writer: [writer.add_tokenizer_model("llama"), writer.add_token_list(["a"])],
            "no score for each",
        ),
        (
            lambda writer: [
                writer.add_tokenizer_model("llama"),
                writer.add_token_list(["a"]),
                writer.add_token_scores([0.0]),
                writer.add_bos_token_id(9),
            ],
            "bos_token_id 9",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_is_refused(tmp_path: Path, add: Callable[[GGUFWriter], None], message: str) -> None:
    path = write_llama(tmp_path / "x.gguf", 2, add)
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_gguf(GgufFile.open(path))
