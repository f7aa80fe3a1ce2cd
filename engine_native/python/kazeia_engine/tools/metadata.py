"""Metadata of the pair: the facts of a model and the keys that carry them."""

from __future__ import annotations

from dataclasses import dataclass, field

import gguf

from kazeia_engine.modelfiles import QUANTIZATION_KEY
from kazeia_engine.tools.gguf_layout import FORMAT_VERSION, ModelShape, PartTypes, file_type
from kazeia_engine.types import ModelKind

__all__ = [
    "SYNTHETIC_KEY",
    "ModelFacts",
    "Vocabulary",
    "codec_metadata",
    "codec_quantization",
    "codec_token_names",
    "talker_metadata",
    "talker_quantization",
]

SYNTHETIC_KEY = "kazeia.synthetic"
_TALKER_ARCH = "qwen3tts"
_CODEC_ID_KEYS = ("pad", "bos", "eos", "think", "nothink", "think_bos", "think_eos")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary; token i of `tokens` has id i, `types` are GGUF token types."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    pre: str = "qwen2"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model is, beside its shapes."""

    name: str
    kind: ModelKind
    model_size: str
    codec_ids: dict[str, int]  # keys of _CODEC_ID_KEYS
    tts_ids: dict[str, int]  # pad, bos, eos: text token ids
    speakers: dict[str, int] = field(default_factory=dict)
    dialects: dict[str, str] = field(default_factory=dict)  # speaker -> dialect
    languages: dict[str, int] = field(default_factory=dict)  # dialects included
    context: int = 32768
    rope_theta: float = 1e6
    rope_sections: tuple[int, ...] = (24, 20, 20)
    rms_eps: float = 1e-6
    cp_rope_theta: float = 1e6
    cp_rms_eps: float = 1e-6
    codec_rope_theta: float = 1e4
    codec_rms_eps: float = 1e-5
    codec_window: int = 72
    sample_rate: int = 24000
    synthetic: bool = False  # random weights


def codec_token_names(facts: ModelFacts, codec_vocab: int) -> list[str]:
    """Names of the codec ids in the token list, as llama.cpp's tools look them up."""
    names = [f"<|codec_{i}|>" for i in range(codec_vocab)]
    for language, i in facts.languages.items():
        names[i] = f"<|codec_language_{language}|>"
    for speaker, i in facts.speakers.items():
        names[i] = f"<|spk_{speaker}|>"
    for key, i in facts.codec_ids.items():
        names[i] = "<|codec_eos_token|>" if key == "eos" else f"<|codec_{key}|>"
    return names


def talker_quantization(types: PartTypes) -> str:
    """The value of QUANTIZATION_KEY in the talker file."""
    return f"talker {types.talker}"


def codec_quantization(types: PartTypes) -> str:
    """The value of QUANTIZATION_KEY in the codec file."""
    return f"cp {types.cp}{' (lossy)' if types.lossy else ''}, decoder {types.decoder}"


def talker_metadata(
    w: gguf.GGUFWriter, facts: ModelFacts, shape: ModelShape, vocab: Vocabulary, types: PartTypes
) -> None:
    """Writes the keys of the talker file."""
    arch, t = _TALKER_ARCH, shape.talker
    w.add_type("model")
    w.add_name(facts.name)
    w.add_uint32(f"{arch}.block_count", t.layers)
    w.add_uint32(f"{arch}.context_length", facts.context)
    w.add_uint32(f"{arch}.embedding_length", t.hidden)
    w.add_uint32(f"{arch}.feed_forward_length", t.ffn)
    w.add_uint32(f"{arch}.attention.head_count", t.heads)
    w.add_uint32(f"{arch}.attention.head_count_kv", t.kv_heads)
    w.add_uint32(f"{arch}.attention.key_length", t.head_dim)
    w.add_uint32(f"{arch}.attention.value_length", t.head_dim)
    w.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", facts.rms_eps)
    sections = [*facts.rope_sections, 0, 0, 0, 0][:4]
    w.add_array(f"{arch}.rope.dimension_sections", sections)
    w.add_float32(f"{arch}.rope.freq_base", facts.rope_theta)
    w.add_file_type(file_type(types.talker))
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_string(QUANTIZATION_KEY, talker_quantization(types))
    _vocabulary(w, facts, shape, vocab)
    _kazeia(w, facts)


def _vocabulary(
    w: gguf.GGUFWriter, facts: ModelFacts, shape: ModelShape, vocab: Vocabulary
) -> None:
    names = codec_token_names(facts, shape.codec_vocab)
    eos = shape.text_vocab + facts.codec_ids["eos"]
    end = shape.text_vocab + shape.codec_vocab
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(vocab.pre)
    w.add_token_list([*vocab.tokens, *names])
    w.add_token_types([*vocab.types, *[int(gguf.TokenType.CONTROL)] * len(names)])
    w.add_token_merges(vocab.merges)
    w.add_eos_token_id(eos)
    w.add_add_bos_token(False)
    w.add_add_eos_token(False)
    # The official code never draws the last 1024 codec ids, end-of-speech excepted.
    suppressed = [i for i in range(end - 1024, end) if i != eos]
    w.add_array("tokenizer.ggml.suppress_tokens", suppressed)


def _kazeia(w: gguf.GGUFWriter, facts: ModelFacts) -> None:
    w.add_uint32("kazeia.format", FORMAT_VERSION)
    w.add_string("kazeia.kind", facts.kind)
    w.add_string("kazeia.model_size", facts.model_size)
    if facts.synthetic:
        w.add_bool(SYNTHETIC_KEY, True)
    # GGUF has no empty arrays; a model without speakers or languages leaves the keys out.
    if facts.speakers:
        w.add_array("kazeia.speaker.names", list(facts.speakers))
        w.add_array("kazeia.speaker.ids", list(facts.speakers.values()))
        w.add_array("kazeia.speaker.dialects", [facts.dialects.get(s, "") for s in facts.speakers])
    if facts.languages:
        w.add_array("kazeia.language.names", list(facts.languages))
        w.add_array("kazeia.language.ids", list(facts.languages.values()))
    for key in _CODEC_ID_KEYS:
        w.add_uint32(f"kazeia.codec.{key}_id", facts.codec_ids[key])
    for key in ("pad", "bos", "eos"):
        w.add_uint32(f"kazeia.tts.{key}_id", facts.tts_ids[key])


def codec_metadata(
    w: gguf.GGUFWriter, facts: ModelFacts, shape: ModelShape, types: PartTypes
) -> None:
    """Writes the keys of the codec file."""
    w.add_type("mmproj")
    w.add_name(facts.name)
    w.add_file_type(file_type(types.cp))
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_string(QUANTIZATION_KEY, codec_quantization(types))
    # llama.cpp opens a codec file only with an audio encoder in it; its attention keys have no
    # meaning for this encoder but are required.
    w.add_bool("clip.has_audio_encoder", True)
    w.add_string("clip.audio.projector_type", "qwen3tts_spkenc")
    w.add_uint32("clip.audio.projection_dim", shape.talker.hidden)
    w.add_uint32("clip.audio.num_mel_bins", shape.speaker.mels)
    w.add_uint32("clip.audio.block_count", 3)
    w.add_uint32("clip.audio.embedding_length", shape.speaker.channels[-1])
    w.add_uint32("clip.audio.feed_forward_length", shape.speaker.channels[-1])
    w.add_uint32("clip.audio.attention.head_count", 1)
    w.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    w.add_bool("clip.has_gen_audio_encoder", True)
    w.add_string("clip.gen.audio.projector_type", "qwen3tts_gen")
    w.add_uint32("clip.gen.audio.projection_dim", shape.talker.hidden)
    w.add_uint32("clip.gen.audio.embedding_length", shape.cp.hidden)
    w.add_uint32("clip.gen.audio.feed_forward_length", shape.cp.ffn)
    w.add_uint32("clip.gen.audio.block_count", shape.cp.layers)
    w.add_uint32("clip.gen.audio.attention.head_count", shape.cp.heads)
    w.add_uint32("clip.gen.audio.attention.head_count_kv", shape.cp.kv_heads)
    w.add_float32("clip.gen.audio.attention.layer_norm_epsilon", facts.cp_rms_eps)
    w.add_uint32("kazeia.format", FORMAT_VERSION)
    w.add_bool("kazeia.speaker_encoder", not shape.speaker.placeholder)
    w.add_float32("kazeia.cp.rope_theta", facts.cp_rope_theta)
    w.add_uint32("kazeia.codec.heads", shape.codec.transformer.heads)
    w.add_uint32("kazeia.codec.heads_kv", shape.codec.transformer.kv_heads)
    w.add_uint32("kazeia.codec.sliding_window", facts.codec_window)
    w.add_float32("kazeia.codec.rope_theta", facts.codec_rope_theta)
    w.add_float32("kazeia.codec.rms_eps", facts.codec_rms_eps)
    w.add_uint32("kazeia.codec.sample_rate", facts.sample_rate)
