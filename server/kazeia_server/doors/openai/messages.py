"""What clients of the OpenAI speech API may ask for.

Shapes: the OpenAI API reference; the additional body fields: vLLM-Omni's and Kokoro-FastAPI's
speech routes, whose clients send them here as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from kazeia_server.audio.formats import OutputFormat
from kazeia_server.doors.fields import (
    MAX_FRAMES,
    MAX_INSTRUCT_CHARS,
    MAX_NAME_CHARS,
    MAX_SEED,
    SampleRate,
    SpeechOptions,
    TaskType,
    check_task,
)
from kazeia_server.errors import UnknownModel
from kazeia_server.settings import Settings
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.voices.backend import BackendInfo

__all__ = [
    "MODEL_ALIASES",
    "ResponseFormat",
    "SpeechBody",
    "check_model",
    "model_names",
    "speech_request",
]

MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
_PCM_RATE = 24_000  # Hz; what clients take samples without a header to be

ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
_DATED = re.compile(r"-\d{4}(-\d\d-\d\d)?\Z")  # tts-1-1106, gpt-4o-mini-tts-2025-12-15
# Kokoro-FastAPI's letters for languages.
_LANGUAGE_LETTERS = {
    "a": "en", "b": "en", "e": "es", "f": "fr", "i": "it", "j": "ja", "p": "pt", "z": "zh",
}  # fmt: skip


def _voice_name(value: Any) -> Any:
    """The name in a voice object `{"id": name}`."""
    if isinstance(value, dict) and isinstance(value.get("id"), str):
        return value["id"]
    return value


def _refuse(what: str) -> Callable[[Any], None]:
    """A validator of a field that is accepted only while it asks for nothing."""

    def check(value: Any) -> None:
        if value not in (None, False, "", [], {}):
            raise ValueError(f"{what} are not supported: leave the field out")

    return check


_Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
_NAME_SCHEMA = {"type": "string", "maxLength": MAX_NAME_CHARS}
_VOICE_ID_SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": _NAME_SCHEMA}}
_Voice = Annotated[
    _Name | None,
    BeforeValidator(_voice_name),
    WithJsonSchema({"anyOf": [_NAME_SCHEMA, _VOICE_ID_SCHEMA, {"type": "null"}]}),
]
_Nothing = WithJsonSchema({"enum": [None, False, "", [], {}], "description": "not supported"})
_Reference = Annotated[Any, AfterValidator(_refuse("reference recordings")), _Nothing]
_Embedding = Annotated[Any, AfterValidator(_refuse("speaker embeddings")), _Nothing]
_Timestamps = Annotated[Any, AfterValidator(_refuse("word timestamps")), _Nothing]


class SpeechBody(SpeechOptions):
    """The body of POST /v1/audio/speech; fields that are not listed are ignored.

    Null means the same as leaving a field out, and so does an empty name.
    """

    model_config = ConfigDict(extra="ignore")

    input: str = Field(
        description="what to say",
        examples=["Hello."],
        json_schema_extra={"pattern": r"\S"},  # checked with the length, for a clearer message
    )
    model: _Name | None = Field(default=None, description="a name of GET /v1/models")
    voice: _Voice = Field(
        default=None, description="a name of GET /v1/audio/voices or one of OpenAI's, or {id}"
    )
    instructions: str | None = Field(
        default=None, max_length=MAX_INSTRUCT_CHARS, description="how to speak, in plain words"
    )
    response_format: ResponseFormat | None = Field(default=None, description="mp3")
    stream_format: Literal["audio", "sse"] | None = Field(
        default=None, description="the audio, or server-sent events that carry it; audio"
    )
    stream: bool | None = Field(
        default=None, description="false: a complete body with its length; true"
    )
    sample_rate: SampleRate | None = Field(
        default=None, description="Hz; pcm: 24000, others: the voice's own or the codec's"
    )
    language: _Name | None = Field(
        default=None, description='"auto", an English name or a code like "fr"'
    )
    lang_code: _Name | None = Field(default=None, description="language, which wins")
    seed: Annotated[int, Field(ge=-1, le=MAX_SEED)] | None = Field(
        default=None, description="same seed, same audio; 0; -1: as if left out"
    )
    top_k: Annotated[int, Field(ge=-1, le=100_000)] | None = Field(
        default=None, description="0 or -1: off"
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_FRAMES)] | None = Field(
        default=None, description="max_frames, which wins"
    )
    non_streaming_mode: bool | None = Field(
        default=None, description="true: text_mode whole, false: streaming"
    )
    initial_codec_chunk_frames: Annotated[int, Field(ge=0, le=MAX_FRAMES)] | None = Field(
        default=None, description="chunk, which wins; 0: as if left out"
    )
    normalization_options: dict[str, Any] | None = Field(
        default=None, description='"normalize": false means clean: false; the rest is ignored'
    )
    task_type: TaskType | None = Field(
        default=None, description="refused unless it is what the model does"
    )
    ref_audio: _Reference = None
    ref_text: _Reference = None
    x_vector_only_mode: _Reference = None
    speaker_embedding: _Embedding = None
    word_timestamps: _Timestamps = None


def speech_request(body: SpeechBody, info: BackendInfo, settings: Settings) -> SynthesisRequest:
    """The utterance a body asks for.

    Raises UnknownModel, or InvalidRequest where the model does not do what `task_type` names.
    """
    check_model(body.model, info, settings)
    check_task(body.task_type, info)
    options = body.model_copy(
        update={
            "voice": body.voice or None,
            "language": body.language or _language(body.lang_code),
            "instruct": body.instructions or body.instruct,
            "seed": None if body.seed == -1 else body.seed,
            "top_k": 0 if body.top_k == -1 else body.top_k,
            "max_frames": body.max_frames or body.max_new_tokens,
            "text_mode": body.text_mode or _text_mode(body.non_streaming_mode),
            "chunk": (body.initial_codec_chunk_frames or None)
            if body.chunk is None
            else body.chunk,
            "clean": _clean(body),
        }
    )
    name = body.response_format or "mp3"
    rate = body.sample_rate or (_PCM_RATE if name == "pcm" else None)
    output = OutputFormat(name, sample_rate=rate)
    return options.request(body.input, settings, output=output)


def check_model(model: str | None, info: BackendInfo, settings: Settings) -> None:
    """Accept the model's name, with or without an owner before it, and OpenAI's names."""
    if not model:
        return
    known = model_names(info, settings)
    wanted = model.rpartition("/")[2].casefold()
    if _DATED.sub("", wanted) in MODEL_ALIASES or wanted in map(str.casefold, known):
        return
    raise UnknownModel(f"unknown model {model[:80]!a}; there is {', '.join(known)}", param="model")


def model_names(info: BackendInfo, settings: Settings) -> list[str]:
    """The model's own name, its folder's, and the aliases."""
    folder = settings.model.name if settings.model else ""
    return [name for name in dict.fromkeys((info.name, folder, *MODEL_ALIASES)) if name]


def _language(code: str | None) -> str | None:
    return _LANGUAGE_LETTERS.get(code.casefold(), code) if code else None


def _text_mode(whole: bool | None) -> Literal["whole", "streaming"] | None:
    if whole is None:
        return None
    return "whole" if whole else "streaming"


def _clean(body: SpeechBody) -> bool | None:
    if body.clean is None and (body.normalization_options or {}).get("normalize") is False:
        return False
    return body.clean
