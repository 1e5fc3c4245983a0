"""Owns the table of GGUF `tokenizer.ggml.pre` types: how each splits text before BPE. Never guesses one.

Each pattern is applied to every piece that the one before left, matches and gaps alike, as llama.cpp does it.
Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp (patterns and flags).
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from midstream.errors import ModelFileError

CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{SYMBOLS}|{SPACES}"
QWEN2 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}|{SYMBOLS}|{SPACES}"

# A letter that is not ASCII counts as upper and as lower case.
UPPER, LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
LOWER_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+"
UPPER_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
PATH_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = rf"{LOWER_WORD}|{UPPER_WORD}|\p{{N}}|{PATH_SYMBOLS}|{SPACES}"
GPT4O = rf"{LOWER_WORD}{CONTRACTIONS}?|{UPPER_WORD}{CONTRACTIONS}?|\p{{N}}{{1,3}}|{PATH_SYMBOLS}|{SPACES}"

DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
# The second range spans U+2000 to U+3000; llama.cpp takes the white space in it for white space only.
CJK = "[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&\\S]+"
KANA_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
# Escapes where Unicode normalisation of this file would change a letter.
CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿ\u0386\u0388-\u038a\u038c\u038e-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ"
    "ᴀ-ᴫᵫ-ᵷᵹ-ᶚ\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffcℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
    "ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
PUNCTUATION = "!-/:-~！-／：-～‘-‟\u3000-。"
ASCII_SYMBOLS = r"[\p{P}\$\+<=>\^~\|]+"


@dataclass(frozen=True)
class PreType:
    """`ignores_merges`: a piece that is a token as a whole is that token, whatever the merges say."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The splits, then bytes as printable characters (GPT-2's alphabet)."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_DIGITS_GPT2 = PreType((r"\p{N}", GPT2))
_GPT2 = PreType((GPT2,))
_LLAMA3 = PreType((LLAMA3,), ignores_merges=True, adds_bos=True)
_QWEN2 = PreType((QWEN2,))

PRE_TYPES: dict[str, PreType] = {
    "default": PreType((ASCII_SYMBOLS, GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "jais": _GPT2,
    "exaone4": _GPT2,
    "trillion": _GPT2,
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,
    "command-r": _DIGITS_GPT2,
    "codeshell": _DIGITS_GPT2,
    "exaone": _DIGITS_GPT2,
    "minerva-7b": _DIGITS_GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "dbrx": PreType((LLAMA3,)),
    "smaug-bpe": PreType((LLAMA3,)),
    "glm4": PreType((LLAMA3,)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "stablelm2": _QWEN2,
    "hunyuan": _QWEN2,
    "tekken": PreType((TEKKEN,), ignores_merges=True, adds_bos=True),
    "gpt-4o": PreType((GPT4O,)),
    "llama4": PreType((GPT4O,)),
    "falcon": PreType((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": PreType((r"[\r\n]", rf"\s?[{CASED_LETTERS}]+", rf"\s?[{PUNCTUATION}]+", r"\s+$", CJK, r"\p{N}+")),
    "deepseek-coder": PreType((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}")),
    "deepseek-v3": PreType((r"\p{N}{1,3}", KANA_HAN, DEEPSEEK3)),
}


def pre_type(name: str) -> PreType:
    """Look up `name`. Raises ModelFileError for an unknown one: a wrong split worsens every answer."""
    found = PRE_TYPES.get(name)
    if found is None:
        raise ModelFileError(
            f"tokenizer.ggml.pre is {name!r}, which is not known; known are {', '.join(sorted(PRE_TYPES))}"
        )
    return found
