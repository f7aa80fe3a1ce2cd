"""The ElevenLabs text-to-speech API: its HTTP routes, and the addresses of its WebSockets.

Shapes: ElevenLabs' API reference and the models of its Python package.  `alignment` is always
null: our voices do not tell when a character is heard.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response, WebSocket
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import Scope

from kazeia_server.audio.formats import ELEVENLABS_FORMATS, parse_output_format
from kazeia_server.doors.elevenlabs.messages import speed_of
from kazeia_server.doors.elevenlabs.protocol import Limits, MultiContext, Protocol, SingleContext
from kazeia_server.doors.fields import MAX_NAME_CHARS, MAX_SEED, parse_options
from kazeia_server.doors.http import body_docs, read_json, service_of, speech_response
from kazeia_server.doors.socket import serve_socket
from kazeia_server.errors import InvalidRequest, ServerError, UnknownVoice, error_body
from kazeia_server.ops.auth import accepts, authorized, brought_key
from kazeia_server.ops.failures import error_docs
from kazeia_server.settings import Settings
from kazeia_server.synthesis.check import check_text
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.synthesis.utterance import Utterance
from kazeia_server.voices.backend import BackendInfo

__all__ = ["SpeechBody", "router"]

router = APIRouter(tags=["ElevenLabs"])
_F = TypeVar("_F", bound=Callable[..., Any])

_DEFAULT_OUTPUT_FORMAT = "mp3_44100_128"
_DEFAULT_INACTIVITY_S = 20
_LONGEST_INACTIVITY_S = 180
_LINE_BYTES = 24 << 10  # a multiple of 6: whole samples, and base64 without padding
_NO_ALIGNMENT = {"alignment": None, "normalized_alignment": None}


class SpeechBody(BaseModel):
    """The body of the text-to-speech routes; fields that are not listed are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    text: str = Field(description="what to say")
    model_id: str | None = Field(default=None, description="any; the server has one model")
    language_code: str | None = Field(
        default=None,
        max_length=MAX_NAME_CHARS,
        description='ISO 639-1, like "fr"; none: by the text',
    )
    seed: int | None = Field(
        default=None, ge=0, le=MAX_SEED, description="same seed, same audio; 0"
    )
    voice_settings: dict[str, Any] | None = Field(
        default=None,
        description="`speed`, 0.25 to 4, changes the tempo; the others mean nothing here",
    )


_VoiceId = Annotated[
    str, Path(description="a voice_id of GET /v1/voices", max_length=MAX_NAME_CHARS)
]
_OutputFormat = Annotated[
    str,
    Query(
        description="codec, sample rate in Hz, and kbit/s",
        json_schema_extra={"enum": list(ELEVENLABS_FORMATS)},
    ),
]
_ERRORS = error_docs(
    s400="the body, the voice or the format cannot be used; `param` names the field",
    s413="the body is too large",
    s415="the body is not declared as application/json",
    s500="synthesis failed",
    s503="busy, loading or shutting down; see Retry-After",
)
_AUDIO = {
    parse_output_format(name).content_type: {"schema": {"type": "string", "format": "binary"}}
    for name in ELEVENLABS_FORMATS
}
_TIMED_SCHEMA = {
    "type": "object",
    "required": ["audio_base64", "alignment", "normalized_alignment"],
    "properties": {
        "audio_base64": {"type": "string"},
        "alignment": {"type": "null"},
        "normalized_alignment": {"type": "null"},
    },
}


_TIMED = {"schema": _TIMED_SCHEMA}
_LINES, _OBJECT = "application/x-ndjson", "application/json"


def _speaks(path: str, summary: str, answer: str, content: dict[str, Any]) -> Callable[[_F], _F]:
    """A route that answers with speech."""
    return router.post(
        f"/v1/text-to-speech/{{voice_id}}{path}",
        summary=summary,
        response_class=Response,
        responses={200: {"description": answer, "content": content}, **_ERRORS},
        openapi_extra=body_docs(SpeechBody, {"text": "Hello."}),
    )


@_speaks("", "Text to a complete audio file", "the speech in output_format", _AUDIO)
async def convert(
    request: Request, voice_id: _VoiceId, output_format: _OutputFormat = _DEFAULT_OUTPUT_FORMAT
) -> Response:
    """The answer begins when all of it has been made."""
    return await _speech(request, voice_id, output_format, streamed=False)


@_speaks(
    "/stream",
    "Text to audio as it is made",
    "the speech in output_format, as it is made",
    _AUDIO,
)
async def stream(
    request: Request, voice_id: _VoiceId, output_format: _OutputFormat = _DEFAULT_OUTPUT_FORMAT
) -> Response:
    """The answer begins with the first audio."""
    return await _speech(request, voice_id, output_format, streamed=True)


@_speaks(
    "/with-timestamps",
    "Text to a complete audio file in JSON",
    "the speech; without timestamps",
    {_OBJECT: _TIMED},
)
async def convert_with_timestamps(
    request: Request, voice_id: _VoiceId, output_format: _OutputFormat = _DEFAULT_OUTPUT_FORMAT
) -> Response:
    """The timestamps are null: our voices do not tell them."""
    wrapped = {"wrap": _as_object, "media_type": _OBJECT}
    return await _speech(request, voice_id, output_format, streamed=False, **wrapped)


@_speaks(
    "/stream/with-timestamps",
    "Text to lines of JSON with audio as it is made",
    "one object a line; without timestamps",
    {_LINES: _TIMED},
)
async def stream_with_timestamps(
    request: Request, voice_id: _VoiceId, output_format: _OutputFormat = _DEFAULT_OUTPUT_FORMAT
) -> Response:
    """The timestamps are null: our voices do not tell them."""
    wrapped = {"wrap": _as_lines, "media_type": _LINES}
    return await _speech(request, voice_id, output_format, streamed=True, **wrapped)


@router.get(
    "/v1/voices/{voice_id}",
    summary="One voice",
    responses=error_docs(
        s400="the name is too long", s404="there is no such voice", s503="no voice is loaded (yet)"
    ),
)
async def voice(request: Request, voice_id: _VoiceId) -> Any:
    """The voice with this name, or the one it is an alias of."""
    service = service_of(request)
    try:
        found = service.check(SynthesisRequest(text="", voice=voice_id), live=True).voice
    except UnknownVoice as error:
        return JSONResponse(error_body(error), 404)
    return _voice_entry(found or "", service.info)


@router.get(
    "/v2/voices",
    summary="The voices there are, as ElevenLabs' search answers",
    responses=error_docs(s400="the search is too long", s503="no voice is loaded (yet)"),
)
async def search_voices(
    request: Request,
    search: Annotated[str, Query(description="a part of the name", max_length=MAX_NAME_CHARS)] = "",
) -> dict[str, Any]:
    """All of them on one page."""
    info = service_of(request).info
    found = [
        _voice_entry(name, info) for name in info.voices if search.casefold() in name.casefold()
    ]
    return {
        "voices": found,
        "has_more": False,
        "total_count": len(found),
        "next_page_token": None,
    }


class _WithTheirKey(APIRoute):
    """A route for those who send `xi-api-key`: at its address others expect another answer."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if "xi-api-key" not in Headers(scope=scope):
            return Match.NONE, {}
        return super().matches(scope)


async def models(request: Request) -> list[dict[str, Any]]:
    """The one model there is; where OpenAI answers with an object this is a list."""
    info = service_of(request).info
    return [
        {
            "model_id": info.name,
            "name": info.name,
            "description": info.description,
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": False,
            "languages": [{"language_id": name, "name": name} for name in info.languages],
        }
    ]


router.add_api_route(
    "/v1/models", models, include_in_schema=False, route_class_override=_WithTheirKey
)


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(websocket: WebSocket, voice_id: str) -> None:
    """Text while it is being written; one utterance a connection."""
    await _serve(websocket, voice_id, SingleContext)


@router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
async def multi_stream_input(websocket: WebSocket, voice_id: str) -> None:
    """Text while it is being written; several utterances side by side."""
    await _serve(websocket, voice_id, MultiContext)


def _voice_entry(name: str, info: BackendInfo) -> dict[str, Any]:
    """A voice as ElevenLabs clients read it."""
    return {
        "voice_id": name,
        "name": name,
        "category": info.source,
        "labels": {},
        "description": info.description,
        "preview_url": None,
    }


async def _speech(
    request: Request, voice_id: str, output_format: str, *, streamed: bool, **wrapped: Any
) -> Response:
    body = await read_json(request, SpeechBody)
    options = parse_options(
        {
            "voice": voice_id,
            "language": body.language_code or None,
            "seed": body.seed,
            "speed": speed_of(body.voice_settings or {}),
        }
    )
    output = parse_output_format(output_format)
    wanted = options.request(body.text, service_of(request).settings, output=output)
    return await speech_response(request, wanted, door="elevenlabs", streamed=streamed, **wrapped)


async def _as_object(audio: AsyncIterator[bytes], _: Utterance) -> AsyncIterator[bytes]:
    encoded = base64.b64encode(b"".join([data async for data in audio])).decode("ascii")
    yield json.dumps({"audio_base64": encoded, **_NO_ALIGNMENT}).encode()


async def _as_lines(audio: AsyncIterator[bytes], _: Utterance) -> AsyncIterator[bytes]:
    async for data in audio:
        for start in range(0, len(data), _LINE_BYTES):
            encoded = base64.b64encode(data[start : start + _LINE_BYTES]).decode("ascii")
            yield json.dumps({"audio_base64": encoded, **_NO_ALIGNMENT}).encode() + b"\n"


async def _serve(websocket: WebSocket, voice_id: str, kind: type[Protocol]) -> None:
    await serve_socket(websocket, partial(_protocol, websocket, voice_id, kind), door="elevenlabs")


def _protocol(
    websocket: WebSocket,
    voice_id: str,
    kind: type[Protocol],
    service: SynthesisService,
    now: float,
) -> Protocol:
    """The protocol of a connection, which refuses with the first message what cannot be served."""
    query, settings = websocket.query_params, service.settings
    inactivity_s, refusal = _DEFAULT_INACTIVITY_S, None
    try:
        inactivity_s = _inactivity(query)
    except ServerError as error:
        refusal = error

    def order() -> SynthesisRequest:
        if refusal is not None:
            raise refusal
        request = _request(voice_id, query, settings)
        service.check(request, live=True)
        return request

    return kind(
        Limits(
            max_message_bytes=settings.max_message_bytes,
            max_text_chars=settings.max_text_chars,
            inactivity_s=inactivity_s,
            patience_s=0.9 * settings.text_timeout_s,
        ),
        now=now,
        order=order,
        check_text=partial(check_text, settings=settings, clean=settings.clean_text),
        authorized=authorized(websocket.scope),
        accepts=partial(accepts, settings),
        key_given=brought_key(websocket.scope),
        sentences=query.get("auto_mode", "").lower() in ("true", "1"),
    )


def _request(voice: str, query: Mapping[str, str], settings: Settings) -> SynthesisRequest:
    """What the address of a connection asks for; its text and speed come later."""
    options = parse_options(
        {
            "voice": voice,
            "language": query.get("language_code") or None,
            "seed": _whole_number(query, "seed"),
        }
    )
    output = parse_output_format(query.get("output_format") or _DEFAULT_OUTPUT_FORMAT)
    return options.request("", settings, output=output)


def _inactivity(query: Mapping[str, str]) -> int:
    """Seconds without a message that close a context; longer than the longest means the longest."""
    seconds = _whole_number(query, "inactivity_timeout")
    if seconds is None:
        return _DEFAULT_INACTIVITY_S
    if seconds < 1:
        raise InvalidRequest(
            f"inactivity_timeout is {seconds}: expected 1 to {_LONGEST_INACTIVITY_S} seconds",
            param="inactivity_timeout",
        )
    return min(seconds, _LONGEST_INACTIVITY_S)


def _whole_number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise InvalidRequest(f"{name} is {ascii(text)[:40]}: expected a whole number", param=name)
    return int(text)
