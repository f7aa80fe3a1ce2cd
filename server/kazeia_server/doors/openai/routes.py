"""The OpenAI speech API: `POST /v1/audio/speech` and the routes its clients look for beside it."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, get_args

from fastapi import APIRouter, Request, Response

from kazeia_server.audio.formats import OutputFormat
from kazeia_server.doors.http import body_docs, read_json, service_of, speech_response
from kazeia_server.doors.openai.messages import (
    ResponseFormat,
    SpeechBody,
    check_model,
    model_names,
    speech_request,
)
from kazeia_server.errors import InvalidRequest, ServerError, UnknownVoice, error_body
from kazeia_server.ops.failures import error_docs
from kazeia_server.settings import Settings
from kazeia_server.synthesis.utterance import Utterance
from kazeia_server.voices.aliases import operator_aliases, resolve_alias
from kazeia_server.voices.backend import BackendInfo

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["OpenAI"])

# What the OpenAI API calls the fields that the checks behind this door name otherwise.
_FIELDS = {"text": "input", "instruct": "instructions"}

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
    names = model_names(info, settings)
    return {"object": "list", "data": [_model(name, info, settings) for name in names]}


@router.get(
    "/models/{model:path}",
    summary="One of the models",
    responses={**error_docs(s404="there is no such model"), **_NO_VOICE},
)
def model(request: Request, model: str) -> dict[str, Any]:
    """What GET /v1/models says of it."""
    service = service_of(request)
    check_model(model, service.info, service.settings)
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
    names = model_names(service.info, service.settings)
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
