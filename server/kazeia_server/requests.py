"""What clients may ask for: the JSON fields, their ranges, and the check against a voice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from kazeia_server.audio.formats import PCM, OutputFormat
from kazeia_server.errors import (
    InvalidRequest,
    TextTooLong,
    UnknownLanguage,
    UnknownVoice,
    describe_validation,
)
from kazeia_server.settings import Settings
from kazeia_server.synthesis.backend import BackendInfo, Split, SynthesisRequest
from kazeia_server.text.segment import has_content
from kazeia_server.voice_aliases import resolve_alias

__all__ = [
    "LANGUAGE_CODES",
    "MAX_INSTRUCT_CHARS",
    "SpeechOptions",
    "build_request",
    "check_request",
    "check_text",
    "json_object",
    "parse_json",
    "parse_options",
    "validated",
]

MAX_INSTRUCT_CHARS = 4096
_MAX_NAME_CHARS = 200
_MAX_SEED = 2**63 - 1
_MAX_FRAMES = 1_000_000

_ModelT = TypeVar("_ModelT", bound=BaseModel)
_Temperature = Annotated[float, Field(ge=0.0, le=10.0)]
_TopK = Annotated[int, Field(ge=0, le=100_000)]
_TopP = Annotated[float, Field(gt=0.0, le=1.0)]
_Name = Annotated[str, Field(min_length=1, max_length=_MAX_NAME_CHARS)]

# ISO 639-1 codes of the languages Qwen3-TTS names in English.
LANGUAGE_CODES = {
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "zh": "chinese",
}


class SpeechOptions(BaseModel):
    """How to speak; every field may be left out."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    voice: _Name | None = Field(default=None, description="a name of GET /v1/voices")
    language: _Name | None = Field(
        default=None, description='"auto", an English name or a code like "fr"'
    )
    instruct: str | None = Field(
        default=None, max_length=MAX_INSTRUCT_CHARS, description="how to speak, in plain words"
    )
    seed: int | None = Field(
        default=None, ge=0, le=_MAX_SEED, description="same seed, same audio; 0"
    )
    temperature: _Temperature | None = None
    top_k: _TopK | None = None
    top_p: _TopP | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10.0)] | None = None
    cp_temperature: _Temperature | None = None
    cp_top_k: _TopK | None = None
    cp_top_p: _TopP | None = None
    text_mode: Literal["auto", "whole", "streaming"] | None = None
    max_frames: int | None = Field(
        default=None, ge=1, le=_MAX_FRAMES, description="frames of 80 ms"
    )
    chunk: Literal["auto"] | Annotated[int, Field(ge=0, le=_MAX_FRAMES)] | None = Field(
        default=None, description='frames a chunk: "auto", a number, or 0 for all at the end'
    )
    speed: Annotated[float, Field(ge=0.25, le=4.0)] | None = Field(
        default=None, description="tempo, the pitch is kept; 1"
    )
    clean: bool | None = Field(
        default=None, description="whether markup and addresses are made speakable; true"
    )
    split: Split | None = Field(
        default=None, description="pieces of a long text: auto, sentence or none"
    )


def parse_json(data: bytes, model: type[_ModelT], *, what: str = "the body") -> _ModelT:
    """Read JSON.

    Raises InvalidRequest saying which field is wrong and what was expected.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        known = [field.alias or name for name, field in model.model_fields.items()]
        raise describe_validation(error, what=what, known=known) from None


def parse_options(values: dict[str, Any]) -> SpeechOptions:
    """Options from Python values, None for those not given.

    Raises InvalidRequest saying which is wrong and what was expected.
    """
    return validated(SpeechOptions, values, what="the options")


def json_object(data: str | bytes, what: str | None = None) -> dict[str, Any]:
    """The fields of a JSON object; `what` it is, for people.

    Raises InvalidRequest.
    """
    try:
        value = from_json(data)
    except ValueError as error:
        raise InvalidRequest(
            f"expected {what or 'a JSON object'}, got invalid JSON: {error}"
        ) from None
    if not isinstance(value, dict):
        expected = f"{what}, a JSON object" if what else "a JSON object"
        raise InvalidRequest(f"expected {expected}, got {type(value).__name__}")
    return value


def validated(
    model: type[_ModelT], fields: dict[str, Any], *, what: str, known: Iterable[str] | None = None
) -> _ModelT:
    """`fields` as a `model`; `known`: the fields there are, for people, if not the model's.

    Raises InvalidRequest naming `what` was read, the field, and what was expected.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        names = list(model.model_fields if known is None else known)
        raise describe_validation(error, what=what, known=names) from None


def build_request(
    text: str, options: SpeechOptions, settings: Settings, *, output: OutputFormat = PCM
) -> SynthesisRequest:
    """The utterance asked for, with the settings' defaults where `options` is silent."""
    defaults: dict[str, Any] = {
        "temperature": settings.temp,
        "top_k": settings.topk,
        "top_p": settings.topp,
        "repetition_penalty": settings.repp,
        "cp_temperature": settings.cp_temp,
        "cp_top_k": settings.cp_topk,
        "cp_top_p": settings.cp_topp,
        "chunk": settings.stream_chunk,
        "clean": settings.clean_text,
        "split": settings.split,
    }
    named = set(SpeechOptions.model_fields)
    given = options.model_dump(include=named, exclude_none=True)
    return SynthesisRequest(**{**defaults, **given, "text": text, "output": output})


def check_text(text: str, settings: Settings, *, clean: bool = True) -> None:
    """Raise InvalidRequest for a text that is empty, too long, or malformed.

    `clean`: what is malformed will be cleaned away, and is no reason to refuse the text.
    """
    if len(text) > settings.max_text_chars:
        raise TextTooLong(
            f"text has {len(text)} characters; at most {settings.max_text_chars} are accepted",
            param="text",
        )
    if not has_content(text):
        raise InvalidRequest("text is empty: expected at least one visible character", param="text")
    if not clean:
        _check_characters(text, "text")


def check_request(
    request: SynthesisRequest, info: BackendInfo, settings: Settings, *, live: bool = False
) -> SynthesisRequest:
    """The request as the voice source takes it: names in their own spelling, limits applied.

    `live`: the text comes later.  Raises InvalidRequest (UnknownVoice, UnknownLanguage,
    TextTooLong).
    """
    if not live:
        check_text(request.text, settings, clean=request.clean)
    if not 0.25 <= request.speed <= 4.0:
        raise InvalidRequest(f"speed is {request.speed}: expected 0.25 to 4", param="speed")
    for name in ("temperature", "top_p", "repetition_penalty", "cp_temperature", "cp_top_p"):
        if not math.isfinite(getattr(request, name)):
            raise InvalidRequest(f"{name} must be a finite number", param=name)
    if request.instruct is not None:
        _check_characters(request.instruct, "instruct")
    frames_a_second = request.speed * info.sample_rate / info.samples_per_frame  # as heard
    longest = int(settings.max_audio_s * frames_a_second)
    frames = request.max_frames or longest
    return replace(
        request,
        voice=_match_voice(request.voice, info, settings),
        language=_match_language(request.language, info),
        instruct=request.instruct or None,
        max_frames=min(frames, max(longest, 1)),
    )


def _match_voice(voice: str | None, info: BackendInfo, settings: Settings) -> str | None:
    if voice is None:
        return info.default_voice
    voice = voice.strip()  # "anna, Bert" cut at its comma
    for name in info.voices:
        if name.casefold() == voice.casefold():
            return name
    if (aliased := resolve_alias(voice, info, settings)) is not None:
        return aliased or None
    if not info.voices:
        raise UnknownVoice(f"{info.name} has no named voices: leave the voice out", param="voice")
    raise UnknownVoice(
        f"unknown voice {_printable(voice)}; {info.name} has {', '.join(info.voices)}",
        param="voice",
    )


def _match_language(language: str, info: BackendInfo) -> str:
    wanted = language.casefold()
    if wanted == "auto":
        return "auto"
    wanted = LANGUAGE_CODES.get(wanted.replace("_", "-").partition("-")[0], wanted)
    for name in info.languages:
        if name.casefold() == wanted:
            return name
    known = ", ".join(("auto", *info.languages))
    raise UnknownLanguage(
        f"unknown language {_printable(language)}; {info.name} has {known}", param="language"
    )


def _check_characters(text: str, param: str) -> None:
    """Refuse what cannot be handed to a C library as UTF-8."""
    if "\0" in text:
        raise InvalidRequest(f"{param} holds a NUL character", param=param)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} holds half of a surrogate pair at position {error.start}", param=param
        ) from None


def _printable(name: str) -> str:
    return ascii(name) if len(name) <= 60 else ascii(name[:57] + "...")
