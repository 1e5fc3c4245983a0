"""Owns the odd strings that tokenizers disagree about, made anew from a seed."""

import random
from collections.abc import Iterator

FRAGMENTS = (
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t",
    " \n ", "\v", "\f", "\x85", "\xa0", "\u2003", "\u2028",
    "\u2029", "\u202f", "\u205f", "\u3000", "\u1680", "\u200b",
    "\ufeff", "\x00", "\x01", "\x1b[0m", "\x7f", "\x9f",
    "1", "12", "123", "1234567", "3.14", "0x1F", "1,000,000",
    "٣٤٥", "१२३", "½", "Ⅷ", "²", "２０２６", "\n1", "\n2.",
    "Hello", " hello", "HELLO", "camelCase", "snake_case",
    "don't", "DON'T", "we'll", "I'VE", "it's", "'s", "’s", "'",
    "éàü", "e\u0301", "ñandú", "straße", "İstanbul", "ǅ",
    "ﬁ", "Ελλάδα", "Привет", "ёжик", "שלום", "مرحبا", "हिन्दी",
    "ภาษาไทย", "ქართული", "አማርኛ", "日本語", "ひらがな",
    "カタカナ", "ｶﾅ", "中文字", "漢字，。", "한국어", "𠀀", "㐀",
    "😀", "👩‍👩‍👧‍👦", "🇫🇷", "👍🏽", "❤️", "🤷🏾‍♂️", "™", "©",
    "€", "£", "→", "∑", "≠", "█", "「」", "…", "—", "«»", "¿",
    "def f(x):\n    return x", "{\"a\": [1, 2]}", "</div>",
    "<b>", "#!/bin/sh", "a=b;", "&&", "||", "!=", "->", "//",
    "/*", "*/", "`", "```py\n", "\\n", "$x", "%s", "@", "^",
    "~", "_", "__init__", "-", "--", "...", "?!", "(", ")]}",
    "http://a.b/c?d=e&f", "foo@bar.com", "<|im_start|>",
    "<|im_end|>", "<|endoftext|>", "<|im_", "|>", "<repo_name>",
    "<|im_<|im_end|>", "<0x0A>", "▁", "Ġ", "Ċ", "\ufffd",
    "\ufdd0", "\U0010ffff", "\ue000", "\u0378", "a\u0300\u0301b",
)  # fmt: skip


def odd_strings(num_strings: int, seed: int) -> Iterator[str]:
    """Yield every fragment alone, then random concatenations, some with random characters between."""
    rng = random.Random(seed)
    for index in range(num_strings):
        if index < len(FRAGMENTS):
            yield FRAGMENTS[index]
            continue
        pieces = rng.choices(FRAGMENTS, k=rng.randint(2, 12))
        if rng.random() < 0.3:
            pieces.insert(rng.randrange(len(pieces)), _random_character(rng))
        yield "".join(pieces)


def _random_character(rng: random.Random) -> str:
    ranges = ((0, 0x80), (0x80, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000))
    return chr(rng.randrange(*rng.choice(ranges))) * rng.randint(1, 3)
