"""Official Qwen3-TTS folders (Hugging Face layout) to a pair of GGUF files.

Needs numpy and gguf only.  Tensors pass one by one in pieces, so that the memory used does not
grow with the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import ModelFormatError, ModelNotFound
from kazeia_engine.tools.checkpoint import Checkpoint, Json, read_json
from kazeia_engine.tools.encoding import encode_tensor
from kazeia_engine.tools.files import require_folder
from kazeia_engine.tools.gguf_layout import (
    CodecShape,
    ModelShape,
    PartTypes,
    SpeakerShape,
    TensorSpec,
    TransformerShape,
    codec_tensors,
    plain_name,
    talker_tensors,
)
from kazeia_engine.tools.gguf_writing import Progress, WrittenPair, write_pair
from kazeia_engine.tools.metadata import ModelFacts, Vocabulary
from kazeia_engine.types import ModelKind

__all__ = ["convert"]

_KINDS: tuple[ModelKind, ...] = ("custom_voice", "voice_design", "base")
_TEXT_ROWS = 4096  # rows of the text table projected at once


def convert(
    source: Path,
    out: Path,
    *,
    type: str = "q8_0",
    talker_type: str | None = None,
    cp_type: str | None = None,
    decoder_type: str | None = None,
    progress: Progress | None = None,
) -> WrittenPair:
    """Converts the folder `source` into a pair of GGUF files in the folder `out`.

    type: weight type of all parts; "f32" keeps everything exact.
    talker_type: of the talker; by default `type`.
    cp_type: of the code predictor; by default `type`, but at least q8_0.
    decoder_type: of the codec decoder; by default f16 (f32 with type f32).
    progress: called after each tensor with its name, the bytes done and all bytes of the file.

    Raises ModelNotFound for a missing file, ModelFormatError for a missing or wrong key or tensor,
    InvalidInput for an unknown type.
    """
    source, out = Path(source), Path(out)
    types = PartTypes.resolve(type, talker_type, cp_type, decoder_type)
    if not source.is_dir():
        raise ModelNotFound(f"{source} is not a folder; expected an official model folder")
    require_folder(out)
    config = read_json(source / "config.json")
    codec_config = read_json(source / "speech_tokenizer" / "config.json")
    shape, facts = _read_model(config, codec_config, plain_name(source.resolve().name))
    vocab = _read_vocabulary(source, shape.text_vocab)
    reader = _Reader(Checkpoint(source), Checkpoint(source / "speech_tokenizer"), shape)
    for spec in (*talker_tensors(shape), *codec_tensors(shape)):
        reader.check(spec)
    return write_pair(out, facts, shape, vocab, types, reader.rows, progress)


def _transformer(c: Json, head_dim: int | None = None) -> TransformerShape:
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    if c.raw.get("attention_bias"):
        raise ModelFormatError("attention_bias is set, but attention biases are not supported")
    if c.text("hidden_act", "silu") != "silu":
        raise ModelFormatError(f"hidden_act {c.text('hidden_act')!r}: only silu is supported")
    shape = TransformerShape(
        hidden=hidden,
        ffn=c.size("intermediate_size"),
        layers=c.size("num_hidden_layers"),
        heads=heads,
        kv_heads=c.size("num_key_value_heads", heads),
        head_dim=c.size("head_dim", head_dim or max(1, hidden // heads)),
    )
    if shape.heads % shape.kv_heads:
        raise ModelFormatError(f"{shape.heads} heads do not divide into {shape.kv_heads} groups")
    return shape


def _read_model(config: Json, codec: Json, name: str) -> tuple[ModelShape, ModelFacts]:
    kind = config.text("tts_model_type")
    if kind not in _KINDS:
        raise ModelFormatError(f"tts_model_type {kind!r}: expected one of {', '.join(_KINDS)}")
    t = config.object("talker_config")
    cp = t.object("code_predictor_config")
    text_vocab, codec_vocab = t.size("text_vocab_size"), t.size("vocab_size")
    if codec_vocab < 1024:
        raise ModelFormatError(f"talker_config.vocab_size is {codec_vocab}, expected at least 1024")
    talker = _transformer(t)
    decoder = codec.object("decoder_config")
    speaker = SpeakerShape.none(talker.hidden)
    if kind == "base":
        speaker = _speaker(config.object("speaker_encoder_config", {}), talker.hidden)
    shape = ModelShape(
        talker=talker,
        cp=_transformer(cp, 128),
        codec=_codec_shape(decoder),
        speaker=speaker,
        text_vocab=text_vocab,
        text_hidden=t.size("text_hidden_size"),
        codec_vocab=codec_vocab,
        cp_vocab=cp.size("vocab_size"),
        groups=t.size("num_code_groups"),
    )
    if shape.groups < 3 or decoder.size("num_quantizers") != shape.groups:
        raise ModelFormatError(
            f"talker_config.num_code_groups is {shape.groups}, decoder_config.num_quantizers is "
            f"{decoder.size('num_quantizers')}; expected the same number, at least 3"
        )
    return shape, _facts(config, codec, kind, name, shape)


def _codec_shape(d: Json) -> CodecShape:
    return CodecShape(
        transformer=_transformer(d),
        codebook_size=d.size("codebook_size"),
        codebook_dim=d.size("codebook_dim"),
        latent=d.size("latent_dim"),
        dim=d.size("decoder_dim"),
        ratios=d.sizes("upsampling_ratios"),
        rates=d.sizes("upsample_rates"),
    )


def _speaker(c: Json, hidden: int) -> SpeakerShape:
    shape = SpeakerShape(
        out=c.size("enc_dim", hidden),
        channels=c.sizes("enc_channels", [512, 512, 512, 512, 1536]),
        kernels=c.sizes("enc_kernel_sizes", [5, 3, 3, 3, 1]),
        attention=c.size("enc_attention_channels", 128),
        squeeze=c.size("enc_se_channels", 128),
        mels=c.size("mel_dim", 128),
        scale=c.size("enc_res2net_scale", 8),
    )
    if len(shape.channels) != 5 or len(shape.kernels) != 5 or shape.scale != 8:
        raise ModelFormatError(
            "speaker_encoder_config: expected 5 enc_channels, 5 enc_kernel_sizes and an "
            "enc_res2net_scale of 8"
        )
    return shape


def _facts(config: Json, codec: Json, kind: ModelKind, name: str, shape: ModelShape) -> ModelFacts:
    t = config.object("talker_config")
    cp = t.object("code_predictor_config")
    d = codec.object("decoder_config")
    n = shape.codec_vocab
    ids = {"eos": t.id("codec_eos_token_id", n)}
    for key in ("pad", "bos", "think", "nothink", "think_bos", "think_eos"):
        ids[key] = t.id(f"codec_{key}_id", n)
    speakers = t.ids("spk_id", n)
    languages = t.ids("codec_language_id", n)
    dialects: dict[str, str] = {}
    for speaker, dialect in t.object("spk_is_dialect", {}).raw.items():
        if dialect:
            if speaker not in speakers or dialect not in languages:
                raise ModelFormatError(
                    f"talker_config.spk_is_dialect: {speaker!r}: {dialect!r} names no speaker of "
                    "spk_id or no language of codec_language_id"
                )
            dialects[speaker] = dialect
    sections = t.object("rope_scaling", {}).sizes("mrope_section", [shape.talker.head_dim // 2])
    return ModelFacts(
        name=name,
        kind=kind,
        model_size=config.text("tts_model_size", ""),
        codec_ids=ids,
        tts_ids={
            k: config.id(f"tts_{k}_token_id", shape.text_vocab) for k in ("pad", "bos", "eos")
        },
        speakers=speakers,
        dialects=dialects,
        languages=languages,
        context=t.size("max_position_embeddings", 32768),
        rope_theta=t.number("rope_theta"),
        rope_sections=sections,
        rms_eps=t.number("rms_norm_eps", 1e-6),
        cp_rope_theta=cp.number("rope_theta"),
        cp_rms_eps=cp.number("rms_norm_eps", 1e-6),
        codec_rope_theta=d.number("rope_theta", 1e4),
        codec_rms_eps=d.number("rms_norm_eps", 1e-5),
        codec_window=d.size("sliding_window", 72),
        sample_rate=codec.size("output_sample_rate", 24000),
    )


def _read_vocabulary(source: Path, text_vocab: int) -> Vocabulary:
    """Tokens of vocab.json and tokenizer_config.json, filled up to the table's rows."""
    plain = read_json(source / "vocab.json")
    settings = read_json(source / "tokenizer_config.json")
    tokens: list[str | None] = [None] * text_vocab
    types = [int(gguf.TokenType.UNUSED)] * text_vocab
    for token in plain.raw:
        i = plain.id(token, text_vocab)
        if tokens[i] is not None:
            raise ModelFormatError(f"{source / 'vocab.json'}: id {i} is used twice")
        tokens[i], types[i] = token, int(gguf.TokenType.NORMAL)
    added = settings.object("added_tokens_decoder", {})
    for key in added.raw:
        entry = added.object(key)
        if not key.isdecimal() or not 0 <= int(key) < text_vocab:
            raise ModelFormatError(
                f"{source / 'tokenizer_config.json'}: added token id {key!r}: expected "
                f"0..{text_vocab - 1}"
            )
        special = bool(entry.raw.get("special"))
        kind = gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
        tokens[int(key)], types[int(key)] = entry.text("content"), int(kind)
    filled = [f"[PAD{i}]" if token is None else token for i, token in enumerate(tokens)]
    if len(set(filled)) != len(filled):
        raise ModelFormatError(f"{source / 'vocab.json'}: two ids share one token text")
    return Vocabulary(filled, types, _read_merges(source / "merges.txt"))


def _read_merges(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as err:
        raise ModelNotFound(f"{path} does not exist") from err
    except (OSError, ValueError) as err:
        raise ModelFormatError(f"{path} is not readable UTF-8 text: {err}") from err
    if lines and lines[0].startswith("#version"):
        lines = lines[1:]
    merges = [line.rstrip("\r") for line in lines if line.strip()]
    for merge in merges:
        if merge.count(" ") != 1 or merge.startswith(" ") or merge.endswith(" "):
            raise ModelFormatError(f"{path}: {merge!r:.60} is not a pair of tokens")
    return merges


class _Reader:
    """Turns checkpoint tensors into the rows of the files' tensors."""

    def __init__(self, main: Checkpoint, codec: Checkpoint, shape: ModelShape) -> None:
        self._main = main
        self._codec = codec
        self._shape = shape

    def _checkpoint(self, spec: TensorSpec) -> Checkpoint:
        return self._codec if spec.part == "decoder" else self._main

    def check(self, spec: TensorSpec) -> None:
        """Raises ModelFormatError when a source tensor is missing or has another shape."""
        if spec.op == "text_table":
            self._check_text(spec)
            return
        for name in spec.sources:
            shape = spec.shape
            if spec.op == "stack":
                shape = spec.shape[1:]
            elif spec.op == "codebook":
                shape = spec.shape[-2:] if name.endswith("embedding_sum") else spec.shape[-2:-1]
            self._checkpoint(spec).require(name, shape)

    def _check_text(self, spec: TensorSpec) -> None:
        s = self._shape
        wide, out = s.text_hidden, s.talker.hidden
        shapes = (
            (s.text_vocab, wide),
            (wide, wide),
            (wide,),
            (out, wide),
            (out,),
            (s.codec_vocab, out),
        )
        for name, shape in zip(spec.sources, shapes, strict=True):
            self._main.require(name, shape)

    def rows(self, spec: TensorSpec, type: str) -> Iterator[npt.NDArray[Any]]:
        """The encoded pieces of a tensor, in order."""
        for piece in self._values(spec):
            yield encode_tensor(spec.name, piece, type)

    def _values(self, spec: TensorSpec) -> Iterator[npt.NDArray[np.float32]]:
        source, width = self._checkpoint(spec), spec.shape[-1]
        if spec.op in ("copy", "stack"):
            for name in spec.sources:
                yield from source.rows(name, width)
        elif spec.op == "text_table":
            yield from self._text_rows(spec)
        elif spec.op == "codebook":
            for total, usage in zip(spec.sources[::2], spec.sources[1::2], strict=True):
                count = np.maximum(source.array(usage), np.float32(1e-5))
                yield (source.array(total) / count[:, None]).astype(np.float32)
        elif spec.op == "zero":
            yield np.zeros((spec.rows, width), dtype=np.float32)
        else:
            x = np.exp(source.array(spec.sources[0]))
            folded = x if spec.op == "snake_alpha" else 1.0 / (x + np.float32(1e-9))
            yield folded.astype(np.float32).reshape(1, -1)

    def _text_rows(self, spec: TensorSpec) -> Iterator[npt.NDArray[np.float32]]:
        """The text table with its projection folded in, then the codec table."""
        table, w1, b1, w2, b2, codec = spec.sources
        first, bias1 = self._main.array(w1), self._main.array(b1)
        second, bias2 = self._main.array(w2), self._main.array(b2)
        wide = self._shape.text_hidden
        for rows in self._main.rows(table, wide, _TEXT_ROWS * wide):
            inner = rows @ first.T + bias1
            # exp overflows to inf for very negative values, where silu is 0: x / inf.
            with np.errstate(over="ignore"):
                inner /= 1.0 + np.exp(-inner)
            yield (inner @ second.T + bias2).astype(np.float32, copy=False)
        yield from self._main.rows(codec, spec.shape[-1])
