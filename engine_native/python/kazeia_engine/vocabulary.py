"""What a model file says about prompts: kind, speakers, languages and control ids.

Files of our own converter carry these facts as `kazeia.*` keys.  Without the keys (a pair made by
llama.cpp's converter) they come from the names in the token list, where every codec id has a token
behind the text vocabulary: `<|codec_bos|>`, `<|codec_language_french|>`, `<|spk_vivian|>`,
`<|codec_17|>`.  Such a file does not say which speaker speaks a dialect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from kazeia_engine.errors import ModelFormatError
from kazeia_engine.gguf_keys import GgufKeys
from kazeia_engine.modelfiles import GgufHeader, read_header
from kazeia_engine.types import ModelInfo, ModelKind

__all__ = ["CodecIds", "ModelVocabulary", "TextIds", "special_tokens"]

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # GGUF token types
_ARCHITECTURE = "qwen3tts"
_FRAMES_PER_SECOND = 12.5
_SIZES = {1024: "0b6", 2048: "1b7"}  # talker width -> tts_model_size of the released models

# llama.cpp's converter names an id after the last config key that carries it, so a config with
# `pad_token_id` yields <|pad_token|> where <|codec_pad|> is expected.
_CODEC_NAMES = {
    "pad": ("<|codec_pad|>", "<|pad_token|>"),
    "bos": ("<|codec_bos|>", "<|bos_token|>"),
    "eos": ("<|codec_eos_token|>", "<|eos_token|>"),
    "think": ("<|codec_think|>",),
    "nothink": ("<|codec_nothink|>",),
    "think_bos": ("<|codec_think_bos|>",),
    "think_eos": ("<|codec_think_eos|>",),
}
_TEXT_NAMES = {"pad": "<tts_pad>", "bos": "<tts_text_bos>", "eos": "<tts_text_eod>"}
_PLAIN_CODEC = re.compile(r"<\|codec_(\d+)\|>")
_LANGUAGE = re.compile(r"<\|codec_language_(.+)\|>")
_SPEAKER = re.compile(r"<\|spk_(?:id_)?(.+)\|>")


@dataclass(frozen=True, slots=True)
class CodecIds:
    """Control ids of the codec vocabulary."""

    pad: int
    bos: int
    eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True, slots=True)
class TextIds:
    """Control ids of the text vocabulary."""

    pad: int
    bos: int
    eos: int


@dataclass(frozen=True, slots=True)
class ModelVocabulary:
    """The facts a prompt is built from."""

    name: str
    kind: ModelKind
    model_size: str  # as in the official config: "0b6", "1b7"; "" when unknown
    text_vocab: int  # rows of the folded text table
    codec_vocab: int
    codec: CodecIds
    text: TextIds
    speakers: Mapping[str, int] = field(default_factory=dict)  # name -> codec id
    dialects: Mapping[str, str] = field(default_factory=dict)  # speaker -> language name
    languages: Mapping[str, int] = field(default_factory=dict)  # name -> codec id, with dialects

    @property
    def language_names(self) -> tuple[str, ...]:
        """Languages a caller may ask for; dialects are reached through their speakers."""
        hidden = set(self.dialects.values())
        return tuple(n for n in self.languages if n not in hidden and "dialect" not in n)

    @property
    def follows_instructions(self) -> bool:
        """Whether an instruction is part of the prompt: not for cloning, not for small presets."""
        return self.kind == "voice_design" or (
            self.kind == "custom_voice" and self.model_size != "0b6"
        )

    def info(
        self,
        *,
        sample_rate: int = 24000,
        frame_rate: float = _FRAMES_PER_SECOND,
        sizes: dict[str, int] | None = None,
        formats: dict[str, str] | None = None,
    ) -> ModelInfo:
        """The public description; sizes and formats are known to the engine only."""
        return ModelInfo(
            name=self.name,
            kind=self.kind,
            speakers=tuple(self.speakers),
            languages=self.language_names,
            sample_rate=sample_rate,
            frame_rate=frame_rate,
            sizes=dict(sizes or {}),
            formats=dict(formats or {}),
            dialects=dict(self.dialects),
            follows_instructions=self.follows_instructions,
        )

    @classmethod
    def load(cls, path: Path | str) -> ModelVocabulary:
        """Reads the facts from a talker file.

        Raises ModelNotFound, or ModelFormatError naming the key or token that is missing or wrong.
        """
        path = Path(path)
        header = read_header(path)
        if header.architecture != _ARCHITECTURE:
            raise ModelFormatError(
                f"{path} is a model of architecture {header.architecture!r}, "
                f"expected {_ARCHITECTURE!r}"
            )
        with GgufKeys(path) as keys:
            return _Reader(path, header, keys).read()


def special_tokens(keys: GgufKeys, *, added_only: bool = False) -> dict[str, int]:
    """Text -> id of every token that is no ordinary text: control and added ones.

    added_only: only those that llama.cpp matches in any text ("user-defined").
    """
    types = keys.integers("tokenizer.ggml.token_type")
    if types is None:
        return {}
    wanted = (_USER_DEFINED,) if added_only else (_UNKNOWN, _CONTROL, _USER_DEFINED)
    at = np.flatnonzero(np.isin(types, wanted)).astype(np.int64)
    texts = keys.strings("tokenizer.ggml.tokens", at) or ()
    return dict(zip(texts, map(int, at), strict=False))


class _Reader:
    """Collects the facts of one file."""

    def __init__(self, path: Path, header: GgufHeader, keys: GgufKeys) -> None:
        self._path = path
        self._values = header.values
        self._tensors = header.tensors
        self._keys = keys
        self._tokens = special_tokens(keys)
        self._n_tokens = keys.length("tokenizer.ggml.tokens")

    def read(self) -> ModelVocabulary:
        text_vocab = self._text_vocab()
        codec_vocab = self._n_tokens - text_vocab
        speakers = self._named_ids("kazeia.speaker", _SPEAKER, text_vocab)
        languages = self._named_ids("kazeia.language", _LANGUAGE, text_vocab)
        name = str(self._values.get("general.name", "")) or self._path.stem
        codec = {k: self._codec_id(k, text_vocab) for k in _CODEC_NAMES}
        text = {k: self._text_id(k) for k in _TEXT_NAMES}
        for label, ids, size in (
            ("codec id", {**codec, **speakers, **languages}, codec_vocab),
            ("text id", text, text_vocab),
        ):
            for key, i in ids.items():
                if not 0 <= i < size:
                    raise ModelFormatError(
                        f"{self._path}: {label} of {key!r} is {i}, expected 0 to {size - 1}"
                    )
        return ModelVocabulary(
            name=name,
            kind=self._kind(name, speakers),
            model_size=self._model_size(),
            text_vocab=text_vocab,
            codec_vocab=codec_vocab,
            codec=CodecIds(**codec),
            text=TextIds(**text),
            speakers=speakers,
            dialects=self._dialects(speakers, languages),
            languages=languages,
        )

    def _text_vocab(self) -> int:
        embedded, head = self._tensors.get("token_embd.weight"), self._tensors.get("output.weight")
        if embedded is not None and head is not None:
            rows, codec_rows = embedded.shape[-1], head.shape[-1]
            if rows != self._n_tokens or not 0 < codec_rows < rows:
                raise ModelFormatError(
                    f"{self._path}: token_embd.weight has {rows} rows, output.weight "
                    f"{codec_rows}, the token list {self._n_tokens}: they do not fit"
                )
            return rows - codec_rows
        for token, i in self._tokens.items():
            if (match := _PLAIN_CODEC.fullmatch(token)) and i >= int(match[1]):
                return i - int(match[1])
        raise ModelFormatError(f"{self._path}: no token <|codec_0|>: not a Qwen3-TTS talker")

    def _codec_id(self, key: str, text_vocab: int) -> int:
        value = self._values.get(f"kazeia.codec.{key}_id")
        if value is not None:
            return self._integer(f"kazeia.codec.{key}_id", value)
        for name in _CODEC_NAMES[key]:
            if name in self._tokens:
                return self._tokens[name] - text_vocab
        raise ModelFormatError(
            f"{self._path}: neither the key kazeia.codec.{key}_id nor a token "
            f"{' or '.join(_CODEC_NAMES[key])}"
        )

    def _text_id(self, key: str) -> int:
        value = self._values.get(f"kazeia.tts.{key}_id")
        if value is not None:
            return self._integer(f"kazeia.tts.{key}_id", value)
        if (name := _TEXT_NAMES[key]) in self._tokens:
            return self._tokens[name]
        raise ModelFormatError(
            f"{self._path}: neither the key kazeia.tts.{key}_id nor a token {name}"
        )

    def _integer(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFormatError(f"{self._path}: key {key} is {value!r}, expected an integer")
        return value

    def _named_ids(self, key: str, pattern: re.Pattern[str], base: int) -> dict[str, int]:
        names = self._keys.strings(f"{key}.names")
        ids = self._keys.integers(f"{key}.ids")
        if names is None and ids is None:
            if "kazeia.format" in self._values:
                return {}  # our converter leaves empty lists out
            found = ((pattern.fullmatch(t), i) for t, i in self._tokens.items())
            return {m[1].lower(): i - base for m, i in found if m is not None}
        if names is None or ids is None or len(names) != len(ids):
            raise ModelFormatError(f"{self._path}: keys {key}.names and {key}.ids do not fit")
        return {n.lower(): int(i) for n, i in zip(names, ids, strict=True)}

    def _dialects(self, speakers: dict[str, int], languages: dict[str, int]) -> dict[str, str]:
        named = self._keys.strings("kazeia.speaker.dialects")
        if named is None:
            return {}
        if len(named) != len(speakers):
            raise ModelFormatError(
                f"{self._path}: key kazeia.speaker.dialects has {len(named)} entries, "
                f"expected {len(speakers)}"
            )
        dialects = {s: d.lower() for s, d in zip(speakers, named, strict=True) if d}
        for speaker, dialect in dialects.items():
            if dialect not in languages:
                raise ModelFormatError(
                    f"{self._path}: dialect {dialect!r} of speaker {speaker!r} "
                    "is not among kazeia.language.names"
                )
        return dialects

    def _kind(self, name: str, speakers: dict[str, int]) -> ModelKind:
        value = self._values.get("kazeia.kind")
        for kind in get_args(ModelKind):
            if value == kind:
                found: ModelKind = kind
                return found
        if value is not None:
            raise ModelFormatError(
                f"{self._path}: key kazeia.kind is {value!r}, "
                f"expected {' or '.join(get_args(ModelKind))}"
            )
        if speakers:
            return "custom_voice"
        plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
        return "voice_design" if "voicedesign" in plain else "base"

    def _model_size(self) -> str:
        value = self._values.get("kazeia.model_size")
        if value is not None:
            return str(value)
        return _SIZES.get(self._values.get(f"{_ARCHITECTURE}.embedding_length", 0), "")
