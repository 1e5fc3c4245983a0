"""Owns the tiny GGUF files that tests write: real enough for llama.cpp to load them."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from tokenizers import Tokenizer, models, trainers

HIDDEN = 32


def write_llama(path: Path, num_tokens: int, add_tokenizer: Callable[[GGUFWriter], None]) -> Path:
    """Write a one-layer llama with zero weights and the tokenizer that `add_tokenizer` adds."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(num_tokens)
    add_tokenizer(writer)
    shapes = {
        "token_embd": (num_tokens, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (HIDDEN, HIDDEN),
        "blk.0.ffn_up": (HIDDEN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, HIDDEN),
    }
    for name, shape in shapes.items():
        dtype = np.float32 if len(shape) == 1 else np.float16
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sentencepiece_vocab(texts: list[str], num_merges: int) -> tuple[list[str], list[float], list[int]]:
    """Train tokens, scores and types on `texts`, in SentencePiece's order."""
    fast = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=num_merges, show_progress=False, limit_alphabet=300)
    # llama.cpp cuts a token at a NUL, and reads the text of a special or a byte token as that token.
    spaced = [re.sub(r"\0|<\||<0x", "", text.replace(" ", "▁")) for text in texts]
    fast.train_from_iterator(spaced, trainer)
    learnt = sorted(fast.get_vocab().items(), key=lambda item: item[1])
    fixed = ["<unk>", "<s>", "</s>", "<|tool|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merged = [text for text, _ in learnt if len(text) > 1 and text not in fixed]
    single = [text for text, _ in learnt if len(text) == 1]
    normal = merged + single
    scores = [0.0] * len(fixed) + [-float(index) for index in range(len(normal))]
    types = [2, 3, 3, 4] + [6] * 256 + [1] * len(normal)
    return fixed + normal, scores, types
