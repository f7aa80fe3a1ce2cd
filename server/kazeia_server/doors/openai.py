"""The OpenAI speech API: `POST /v1/audio/speech` and the routes its clients look for beside it.

Shapes: the OpenAI API reference; the additional body fields: vLLM-Omni's and Kokoro-FastAPI's
speech routes, whose clients send them here as well.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from kazeia_server.audio.formats import OutputFormat
from kazeia_server.doors.elevenlabs import model_entries
from kazeia_server.doors.http import body_docs, read_json, service_of, speech_response
from kazeia_server.doors.qwen_fields import check_task
from kazeia_server.errors import InvalidRequest, ServerError, UnknownModel, UnknownVoice, error_body
from kazeia_server.ops.failures import error_docs
from kazeia_server.requests import MAX_INSTRUCT_CHARS, SpeechOptions, build_request
from kazeia_server.settings import Settings
from kazeia_server.synthesis.backend import BackendInfo, SynthesisRequest
from kazeia_server.synthesis.utterance import Utterance
from kazeia_server.voice_aliases import operator_aliases, resolve_alias

__all__ = ["MODEL_ALIASES", "SpeechBody", "router", "speech_request"]

router = APIRouter(prefix="/v1", tags=["OpenAI"])

MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
_PCM_RATE = 24_000  # Hz; what clients take samples without a header to be

ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
_DATED = re.compile(r"-\d{4}(-\d\d-\d\d)?\Z")  # tts-1-1106, gpt-4o-mini-tts-2025-12-15
# Kokoro-FastAPI's letters for languages.
_LANGUAGE_LETTERS = {
    "a": "en", "b": "en", "e": "es", "f": "fr", "i": "it", "j": "ja", "p": "pt", "z": "zh",
}  # fmt: skip
# What the OpenAI API calls the fields that the checks behind this door name otherwise.
_FIELDS = {"text": "input", "instruct": "instructions"}
_MAX_NAME = 200


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


_Name = Annotated[str, Field(max_length=_MAX_NAME)]
_NAME_SCHEMA = {"type": "string", "maxLength": _MAX_NAME}
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
    sample_rate: Annotated[int, Field(ge=8_000, le=48_000)] | None = Field(
        default=None, description="Hz; pcm: 24000, others: the voice's own or the codec's"
    )
    language: _Name | None = Field(
        default=None, description='"auto", an English name or a code like "fr"'
    )
    lang_code: _Name | None = Field(default=None, description="language, which wins")
    seed: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = Field(
        default=None, description="same seed, same audio; 0; -1: as if left out"
    )
    top_k: Annotated[int, Field(ge=-1, le=100_000)] | None = Field(
        default=None, description="0 or -1: off"
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="max_frames, which wins"
    )
    non_streaming_mode: bool | None = Field(
        default=None, description="true: text_mode whole, false: streaming"
    )
    initial_codec_chunk_frames: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="chunk, which wins; 0: as if left out"
    )
    normalization_options: dict[str, Any] | None = Field(
        default=None, description='"normalize": false means clean: false; the rest is ignored'
    )
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = Field(
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
    _check_model(body.model, info, settings)
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
    return build_request(body.input, options, settings, output=output)


def _check_model(model: str | None, info: BackendInfo, settings: Settings) -> None:
    """Accept the model's name, with or without an owner before it, and OpenAI's names."""
    if not model:
        return
    known = _model_names(info, settings)
    wanted = model.rpartition("/")[2].casefold()
    if _DATED.sub("", wanted) in MODEL_ALIASES or wanted in map(str.casefold, known):
        return
    raise UnknownModel(f"unknown model {model[:80]!a}; there is {', '.join(known)}", param="model")


def _model_names(info: BackendInfo, settings: Settings) -> list[str]:
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


_SPEECH_ANSWER = {
    "description": "the speech; in response_format, or as events with stream_format sse",
    "content": {
        **{
            OutputFormat(name).content_type: {"schema": {"type": "string", "format": "binary"}}
            for name in get_args(ResponseFormat)
        },
        "text/event-stream": {},  # OpenAPI 3.1 has no words for the schema of an event
    },
}
_NO_VOICE = error_docs(s503="no voice is loaded (yet)")


@router.post(
    "/audio/speech",
    summary="Text to speech in the shape of the OpenAI API",
    response_class=Response,
    responses={
        200: _SPEECH_ANSWER,
        **error_docs(
            s400="the body or a field of it cannot be used; `param` names the field",
            s404="there is no such model",
            s415="the body is not declared as application/json",
            s500="synthesis failed",
            s503="busy, loading or shutting down; see Retry-After",
        ),
    },
    openapi_extra=body_docs(SpeechBody, {"input": "Hello.", "voice": "alloy"}),
)
async def speech(request: Request) -> Response:
    """Speak `input`; the answer is sent while it is made unless `stream` is false.

    Events are `speech.audio.delta` with `audio` in base64 (a piece of the file in
    `response_format`), then `speech.audio.done` with `usage`: as input_tokens a quarter of the
    UTF-8 bytes of `input`, as output_tokens the frames of 80 ms.  When synthesis fails after it
    has begun, `speech.audio.error` is the last event and the answer breaks off.
    """
    body = await read_json(request, SpeechBody)
    service = service_of(request)
    wanted = speech_request(body, service.info, service.settings)
    events = body.stream_format == "sse"
    try:
        return await speech_response(
            request,
            wanted,
            door="openai",
            streamed=events or body.stream is not False,
            wrap=_events if events else None,
            media_type="text/event-stream" if events else None,
        )
    except InvalidRequest as error:
        error.param = _FIELDS.get(error.param or "", error.param)
        raise


async def _events(audio: AsyncIterator[bytes], utterance: Utterance) -> AsyncIterator[bytes]:
    """The audio as server-sent events."""
    begun = False
    try:
        async for data in audio:
            if data:
                begun = True
                encoded = base64.b64encode(data).decode("ascii")
                yield _event({"type": "speech.audio.delta", "audio": encoded})
    except ServerError as error:
        if begun:
            yield _event({"type": "speech.audio.error", **error_body(error)})
        raise
    stats = utterance.stats
    assert stats is not None
    tokens_in = -(-len(utterance.request.text.encode()) // 4)
    usage = {
        "input_tokens": tokens_in,
        "output_tokens": stats.frames,
        "total_tokens": tokens_in + stats.frames,
    }
    yield _event({"type": "speech.audio.done", "usage": usage, "ended": stats.ended})


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n\n"


@router.get("/models", summary="The names `model` may have", responses=_NO_VOICE)
def models(request: Request) -> Any:
    """The loaded model and the OpenAI names that stand for it.

    With an `xi-api-key` header, the list that the ElevenLabs API has at this address.
    """
    service = service_of(request)
    info, settings = service.info, service.settings
    if "xi-api-key" in request.headers:
        return model_entries(info)
    names = _model_names(info, settings)
    return {"object": "list", "data": [_model(name, info, settings) for name in names]}


@router.get(
    "/models/{model:path}",
    summary="One of the models",
    responses={**error_docs(s404="there is no such model"), **_NO_VOICE},
)
def model(request: Request, model: str) -> dict[str, Any]:
    """What GET /v1/models says of it."""
    service = service_of(request)
    _check_model(model, service.info, service.settings)
    return _model(model, service.info, service.settings)


def _model(name: str, info: BackendInfo, settings: Settings) -> dict[str, Any]:
    try:
        created = int(settings.model.stat().st_mtime) if settings.model else 0
    except OSError:  # moved away since it was loaded
        created = 0
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "kazeia",
        "root": info.name,
    }


@router.get("/audio/models", summary="The names `model` may have", responses=_NO_VOICE)
async def audio_models(request: Request) -> dict[str, Any]:
    """The list in the shape that Open WebUI reads."""
    service = service_of(request)
    names = _model_names(service.info, service.settings)
    return {"object": "list", "models": [{"id": name, "name": name} for name in names]}


@router.get("/audio/voices", summary="The names `voice` may have", responses=_NO_VOICE)
async def audio_voices(request: Request) -> dict[str, Any]:
    """The voices and the operator's aliases; OpenAI's names are accepted as well.

    Where voices have no names, the one that there is goes by "default".
    """
    service = service_of(request)
    info = service.info
    stands_for = {name: name for name in info.voices or ("default",)}
    for alias in operator_aliases(service.settings):
        try:
            stands_for.setdefault(alias, resolve_alias(alias, info, service.settings) or "default")
        except UnknownVoice:  # set for another model
            continue
    return {
        "object": "list",
        "voices": [
            {
                "id": name,
                "name": name,
                "voice": voice,
                "languages": list(info.languages),
                "default": voice == (info.default_voice or "default"),
            }
            for name, voice in stands_for.items()
        ],
    }


@router.get("/test", summary="A fast answer for clients that look for a server")
@router.get("/", summary="A fast answer for clients that warm up a connection")
async def ping() -> dict[str, str]:
    """Always the same while the process answers."""
    return {"status": "ok"}
