"""POST /synthesize: text in, audio out; and the address of the speech protocol's WebSocket."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response, WebSocket
from pydantic import Field

from kazeia_server.audio.formats import FORMAT_NAMES, FormatName, OutputFormat
from kazeia_server.doors.fields import SampleRate, SpeechOptions, check_task
from kazeia_server.doors.http import body_docs, read_json, service_of, speech_response
from kazeia_server.doors.socket import serve_socket
from kazeia_server.doors.speech.messages import SessionConfig
from kazeia_server.doors.speech.protocol import SpeechProtocol
from kazeia_server.errors import Unavailable, VoiceLoadError
from kazeia_server.ops.auth import accepts, authorized, brought_key
from kazeia_server.ops.failures import error_docs
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.synthesis.service import SynthesisService

__all__ = ["SynthesizeBody", "router"]

router = APIRouter(tags=["speech"])

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_CONTENT_TYPES = {
    OutputFormat(name).content_type.partition(";")[0]: name  # type: ignore[arg-type]
    for name in FORMAT_NAMES
    if name not in ("ulaw", "alaw")
}


class SynthesizeBody(SpeechOptions):
    """The body of POST /synthesize."""

    text: str = Field(description="what to say")
    response_format: FormatName | None = Field(
        default=None, description="wav, or what Accept asks for"
    )
    sample_rate: SampleRate | None = Field(default=None, description="Hz; the voice's own")
    stream: bool | None = Field(
        default=None, description="whether audio is sent while it is made; false"
    )


@router.post(
    "/synthesize",
    summary="Text to a WAV file, or another format, complete or streamed",
    response_class=Response,
    responses={
        200: {
            "description": "audio: a 16-bit mono WAV with true sizes unless asked otherwise",
            "content": dict.fromkeys(_CONTENT_TYPES, _BINARY),
        },
        **error_docs(
            s400="the body or a field of it cannot be used; `param` names the field",
            s401="a key is needed",
            s413="the body is too large",
            s415="the body is not declared as application/json",
            s500="synthesis failed",
            s503="busy, loading or shutting down; see Retry-After",
        ),
    },
    openapi_extra=body_docs(SynthesizeBody, {"text": "Hello."}),
)
async def synthesize(
    request: Request,
    stream: Annotated[bool, Query(description="send audio while it is made")] = False,
) -> Response:
    """Speak `text`.

    A client that goes away meanwhile ends the synthesis.
    """
    body = await read_json(request, SynthesizeBody)
    accepted, wants_stream = _accepted(request.headers.get("accept", ""))
    output = OutputFormat(body.response_format or accepted or "wav", body.sample_rate)
    wanted = body.request(body.text, service_of(request).settings, output=output)
    streamed = body.stream if body.stream is not None else stream or wants_stream
    return await speech_response(request, wanted, door="synthesize", streamed=streamed)


def _accepted(accept: str) -> tuple[FormatName | None, bool]:
    """The format an Accept header names first, and whether it asks for a stream.

    A stream is asked for by `audio/pcm`, which has no header to hold sizes, or by a parameter:
    `audio/wav; stream=1`.
    """
    for choice in accept.split(","):
        media, *parameters = (part.strip().lower() for part in choice.split(";"))
        name = _CONTENT_TYPES.get(media)
        if name is not None:
            return name, name == "pcm" or "stream=1" in parameters  # type: ignore[return-value]
    return None, False


@router.websocket("/ws/synthesize")
@router.websocket("/v1/audio/speech/stream")
async def speech_socket(websocket: WebSocket) -> None:
    """The protocol of server/PROTOCOL.md."""

    def protocol(service: SynthesisService, now: float) -> SpeechProtocol:
        return SpeechProtocol(
            service.settings,
            now=now,
            check=partial(_check, service),
            authorized=authorized(websocket.scope),
            accepts=partial(accepts, service.settings),
            key_given=brought_key(websocket.scope),
        )

    await serve_socket(websocket, protocol, door="websocket")


def _check(service: SynthesisService, config: SessionConfig, request: SynthesisRequest) -> None:
    """Refuse a configuration that names what the voice does not have."""
    with suppress(Unavailable, VoiceLoadError):  # said when the first utterance is asked for
        check_task(config.task_type, service.info)
        service.check(request, live=True)
