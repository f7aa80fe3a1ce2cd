"""Models of the true shapes with random weights.

They speak noise, but they cost what a real model of that size costs: speed and memory can be
measured, and the whole path tested, before anything is downloaded.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import InvalidInput
from kazeia_engine.modelfiles import TYPE_SIZES
from kazeia_engine.tools.encoding import encode
from kazeia_engine.tools.files import require_folder
from kazeia_engine.tools.gguf_layout import (
    CodecShape,
    ModelShape,
    PartTypes,
    SpeakerShape,
    TensorSpec,
    TransformerShape,
)
from kazeia_engine.tools.gguf_writing import Progress, WrittenPair, write_pair
from kazeia_engine.tools.metadata import ModelFacts, Vocabulary

__all__ = ["FIRST_SPECIAL", "SIZES", "SPECIAL_TOKENS", "shape_of", "synth", "vocabulary_of"]

SIZES = ("0.6b", "1.7b", "tiny")

_PIECE = 1 << 22  # values encoded or copied at once

_CODEC_IDS = {
    "pad": 2148,
    "bos": 2149,
    "eos": 2150,
    "think": 2154,
    "nothink": 2155,
    "think_bos": 2156,
    "think_eos": 2157,
}
_LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}
_SPEAKERS = {"serena": 3066, "vivian": 3065, "ryan": 3061, "aiden": 2861, "dylan": 2878}
_DIALECTS = {"dylan": "beijing_dialect"}

FIRST_SPECIAL = 151643  # id of the first special token in the released vocabularies
_BEFORE = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_TOOLS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
_AUDIO = (
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)  # fmt: skip
_CONTROL, _USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED
# The added tokens of the released models, in the order of their ids.
SPECIAL_TOKENS = {
    **dict.fromkeys(_BEFORE, _CONTROL),
    **dict.fromkeys(_TOOLS, _USER_DEFINED),
    **dict.fromkeys(_AUDIO, _CONTROL),
}
# The prompt template needs these as single tokens; where the full vocabulary has them.
_TEMPLATE_WORDS = {"assistant": 77091, "user": 872}
_WORDS = (
    "the and of to in is it that for you was with on be are this have not but we "
    "le la les des une est dans pour que qui vous nous avec pas sur voix jour bonjour "
    "hello world voice speech good morning today time people wind river song small test"
)


@dataclass(frozen=True, slots=True)
class _Size:
    shape: ModelShape
    model_size: str
    true_ids: bool  # the released ids of special tokens


def _released(hidden: int, ffn: int) -> ModelShape:
    return ModelShape(
        talker=TransformerShape(hidden, ffn, 28, 16, 8, 128),
        cp=TransformerShape(1024, 3072, 5, 16, 8, 128),
        codec=CodecShape(
            transformer=TransformerShape(512, 1024, 8, 16, 16, 64),
            codebook_size=2048,
            codebook_dim=512,
            latent=1024,
            dim=1536,
        ),
        speaker=SpeakerShape.none(hidden),
        text_vocab=151936,
        text_hidden=2048,
        codec_vocab=3072,
        cp_vocab=2048,
        groups=16,
    )


def _tiny() -> ModelShape:
    return ModelShape(
        talker=TransformerShape(96, 128, 2, 4, 2, 32),
        cp=TransformerShape(64, 128, 2, 4, 2, 32),
        codec=CodecShape(
            transformer=TransformerShape(32, 64, 8, 16, 16, 4),
            codebook_size=2048,
            codebook_dim=32,
            latent=32,
            dim=32,
        ),
        speaker=SpeakerShape.none(96),
        text_vocab=1024,
        text_hidden=64,
        codec_vocab=3072,
        cp_vocab=2048,
        groups=16,
    )


def _size(name: str) -> _Size:
    if name == "0.6b":
        return _Size(_released(1024, 3072), "0b6", True)
    if name == "1.7b":
        return _Size(_released(2048, 6144), "1b7", True)
    if name == "tiny":
        return _Size(_tiny(), "1b7", False)
    raise InvalidInput(f"size {name!r}: expected one of {', '.join(SIZES)}", param="size")


def shape_of(size: str) -> ModelShape:
    """The shapes of a size; InvalidInput for an unknown one."""
    return _size(size).shape


def vocabulary_of(size: str) -> Vocabulary:
    """The vocabulary of a size: byte-level, a few merges, fillers for the unused ids."""
    chosen = _size(size)
    return _vocabulary(chosen.shape.text_vocab, chosen.true_ids)


def synth(
    out: Path,
    *,
    size: str = "0.6b",
    type: str = "q8_0",
    talker_type: str | None = None,
    cp_type: str | None = None,
    decoder_type: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> WrittenPair:
    """Writes a pair of GGUF files with random weights into the folder `out`.

    size: "0.6b" or "1.7b" with the released shapes and token ids, or "tiny".
    type, talker_type, cp_type, decoder_type, progress: as for `convert`.
    seed: the same seed gives the same files.

    End-of-speech is never among the likely candidates.  Raises InvalidInput for an unknown size
    or type or a negative seed.
    """
    out = Path(out)
    chosen = _size(size.lower())
    types = PartTypes.resolve(type, talker_type, cp_type, decoder_type)
    if seed < 0:
        raise InvalidInput(f"seed {seed}: expected 0 or more", param="seed")
    require_folder(out)
    vocab = vocabulary_of(size.lower())
    facts = _facts(f"synth-{size.lower()}", chosen, vocab)
    source = _Random(seed, facts.codec_ids["eos"], chosen.shape)
    return write_pair(out, facts, chosen.shape, vocab, types, source.rows, progress)


def _facts(name: str, size: _Size, vocab: Vocabulary) -> ModelFacts:
    third = size.shape.talker.head_dim // 2 * 5 // 16
    return ModelFacts(
        name=name,
        synthetic=True,
        kind="custom_voice",
        model_size=size.model_size,
        codec_ids=_CODEC_IDS,
        tts_ids={
            "pad": vocab.tokens.index("<tts_pad>"),
            "bos": vocab.tokens.index("<tts_text_bos>"),
            "eos": vocab.tokens.index("<tts_text_eod>"),
        },
        speakers=_SPEAKERS,
        dialects=_DIALECTS,
        languages=_LANGUAGES,
        rope_sections=(size.shape.talker.head_dim // 2 - 2 * third, third, third),
    )


def _byte_tokens() -> list[str]:
    """The 256 byte tokens in id order: printable bytes first, then the others."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [*map(chr, plain), *(chr(256 + i) for i in range(256 - len(plain)))]


def _vocabulary(rows: int, true_ids: bool) -> Vocabulary:
    """A byte-level vocabulary with merges for a few words; unused ids are fillers."""
    fixed = _TEMPLATE_WORDS if true_ids else {}
    tokens = dict.fromkeys(_byte_tokens(), 0)
    merges: list[str] = []
    words = [*_TEMPLATE_WORDS, *(form for w in _WORDS.split() for form in (w, f"\u0120{w}"))]
    for word in words:
        left = word[0]
        for ch in word[1:]:
            if left + ch not in tokens:
                merges.append(f"{left} {ch}")
                tokens[left + ch] = 0
            left += ch
    table: dict[int, tuple[str, gguf.TokenType]] = {
        i: (word, gguf.TokenType.NORMAL) for word, i in fixed.items()
    }
    plain = [token for token in tokens if token not in fixed]
    spare = (i for i in range(rows) if i not in table)
    for token in plain:
        table[next(spare)] = (token, gguf.TokenType.NORMAL)
    special = FIRST_SPECIAL if true_ids else len(table)
    table.update({special + i: entry for i, entry in enumerate(SPECIAL_TOKENS.items())})
    unused = gguf.TokenType.UNUSED
    full = [table.get(i, (f"[unused_{i}]", unused)) for i in range(rows)]
    return Vocabulary([t for t, _ in full], [int(k) for _, k in full], merges)


class _Random:
    """Random tensors, already in the stored type.

    A matrix is put together from a pool of encoded blocks in random order: encoding a few
    thousand blocks is quick, and neither speed nor statistics of the result differ from a matrix
    encoded as a whole.
    """

    def __init__(self, seed: int, eos: int, shape: ModelShape) -> None:
        self._seed = seed
        self._eos = eos
        self._shape = shape
        self._pools: dict[tuple[str, int], npt.NDArray[Any]] = {}

    def rows(self, spec: TensorSpec, type: str) -> Iterator[npt.NDArray[Any]]:
        """The encoded pieces of a tensor, in order."""
        rng = np.random.default_rng([self._seed, zlib.crc32(spec.name.encode())])
        if spec.op == "zero":
            yield encode(np.zeros((spec.rows, spec.shape[-1]), dtype=np.float32), type)
        elif len(spec.shape) == 1:
            yield _vector(spec, rng)
        elif spec.name == "output.weight":
            yield from self._head(spec, type, rng)
        else:
            yield from self._matrix(spec, type, rng, spec.rows)

    def _head(
        self, spec: TensorSpec, type: str, rng: np.random.Generator
    ) -> Iterator[npt.NDArray[Any]]:
        """The codec head with a row of zeros for end-of-speech.

        Its logit is then 0 while the best of the codes' random logits are far above.
        """
        yield from self._matrix(spec, type, rng, self._eos)
        yield encode(np.zeros((1, spec.shape[-1]), dtype=np.float32), type)
        yield from self._matrix(spec, type, rng, spec.rows - self._eos - 1)

    def _matrix(
        self, spec: TensorSpec, type: str, rng: np.random.Generator, rows: int
    ) -> Iterator[npt.NDArray[Any]]:
        kind = gguf.GGMLQuantizationType[type.upper()]
        unit = max(32, TYPE_SIZES[kind][0])
        pool = self._pool(type, unit, _deviation(spec, self._shape))
        left = rows * spec.shape[-1]
        while left > 0:
            count = min(left, _PIECE)
            picked = pool[rng.integers(0, len(pool), size=-(-count // unit), dtype=np.int32)]
            flat = picked.reshape(-1)
            # Only types without blocks reach a count that is no multiple of the unit.
            yield flat if count % unit == 0 else flat[:count]
            left -= count

    def _pool(self, type: str, unit: int, deviation: float) -> npt.NDArray[Any]:
        """Encoded blocks of `unit` values, [n, ...]; one pool per type and scale."""
        key = (type, round(deviation * 1e6))
        if key not in self._pools:
            rng = np.random.default_rng([self._seed, *key[0].encode(), key[1]])
            n = (1 << 18) // unit
            values = rng.standard_normal((n, unit), dtype=np.float32) * np.float32(deviation)
            self._pools[key] = encode(values, type)
        return self._pools[key]


def _vector(spec: TensorSpec, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    x = rng.standard_normal(spec.shape[0], dtype=np.float32)
    if spec.op == "snake_alpha":
        y = np.exp(0.3 * x)
    elif spec.op == "snake_beta":
        y = 1.0 / (np.exp(0.3 * x) + 1e-9)
    elif spec.name.endswith(".bias"):
        y = 0.05 * x
    elif spec.name.endswith("gamma") or ".ls1." in spec.name or ".ls2." in spec.name:
        y = 0.3 + 0.05 * x
    else:  # norms
        y = 1.0 + 0.05 * x
    return np.asarray(y, dtype=np.float32)


def _deviation(spec: TensorSpec, shape: ModelShape) -> float:
    """Standard deviation that keeps a stage's output at the size of its input."""
    name = spec.name
    if name.endswith("codebook.weight"):
        return 0.5
    if spec.role == "table":
        return 1.0
    if spec.role == "tconv":
        # Each output of [in, out, kernel] sums in * kernel / stride terms.
        overlap = 1 if ".up.blk." in name else 2
        return 1.0 / math.sqrt(spec.shape[0] * overlap)
    fan_in = math.prod(spec.shape[1:]) if spec.role == "conv" else spec.shape[-1]
    gain = 1.0
    if spec.role == "head":
        gain = 3.0
    elif ".conv2." in name and ".res." in name:
        gain = 0.4  # three residual branches a block
    elif "dac.post_conv" in name:
        gain = 0.05  # what arrives here has a deviation of about 4
    elif spec.part in ("talker", "cp") and "ffn_down" in name:
        layers = shape.talker.layers if spec.part == "talker" else shape.cp.layers
        gain = 1.0 / math.sqrt(layers)
    return gain / math.sqrt(fan_in)
