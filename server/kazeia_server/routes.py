"""The HTTP routes and the WebSocket's address."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any, cast

from fastapi import APIRouter, Request, Response, WebSocket
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from kazeia_server import __version__
from kazeia_server.audio import WAV_HEADER_BYTES, wav_header
from kazeia_server.backend import SynthesisRequest, SynthesisStats
from kazeia_server.errors import (
    Unavailable,
    UnsupportedMediaType,
    error_body,
    face_of,
)
from kazeia_server.logging_ import logger
from kazeia_server.requests import SynthesizeBody, build_request, parse_body
from kazeia_server.service import SynthesisService
from kazeia_server.websocket import SpeechSocket

__all__ = ["error_response", "router"]

router = APIRouter()

_SEND_BYTES = 64 << 10

_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def _errors(**meanings: str) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": _ERROR_SCHEMA}}
    return {
        int(status.removeprefix("s")): {"description": meaning, "content": content}
        for status, meaning in meanings.items()
    }


def error_response(error: Exception) -> JSONResponse:
    """The JSON answer for an error; says when to come back if that helps."""
    headers = {}
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(error.retry_after_s)
    return JSONResponse(error_body(error), face_of(error).status, headers=headers)


def _service(request: Request | WebSocket) -> SynthesisService:
    return cast(SynthesisService, request.app.state.service)


@router.get("/health", summary="Whether the process lives; never touches the voice")
async def health(request: Request) -> dict[str, Any]:
    """Always 200 while the process answers."""
    service = _service(request)
    model = service.settings.model
    answer: dict[str, Any] = {
        "status": "ok",
        "version": __version__,
        "state": service.state,
        "voice_source": "built-in" if model is None else "qwen3-tts",
        "model": None if model is None else model.name,
        "running": service.running,
        "waiting": service.waiting,
    }
    if service.failure is not None:
        answer["failure"] = str(service.failure)
    return answer


@router.get(
    "/readyz",
    summary="Whether speech can be asked for now",
    responses=_errors(s503="loading, failed to load, or shutting down"),
)
async def readyz(request: Request) -> dict[str, Any]:
    """200 once the voice is loaded and warm."""
    info = _service(request).info
    return {"status": "ready", "voice_source": info.source, "model": info.name}


@router.get(
    "/v1/voices",
    summary="The voices and languages there are",
    responses=_errors(s503="no voice is loaded (yet)"),
)
async def voices(request: Request) -> dict[str, Any]:
    """Names for `voice` and `language`."""
    info = _service(request).info
    return {
        "voices": [
            {
                "id": name,
                "voice_id": name,
                "name": name,
                "category": info.source,
                "default": name == info.default_voice,
            }
            for name in info.voices
        ],
        "languages": ["auto", *info.languages],
        "voice_source": info.source,
        "model": info.name,
        "sample_rate": info.sample_rate,
    }


@router.post(
    "/synthesize",
    summary="Text to a complete WAV file",
    response_class=Response,
    responses={
        200: {
            "description": "16-bit mono WAV with true sizes",
            "content": {"audio/wav": {"schema": {"type": "string", "format": "binary"}}},
        },
        **_errors(
            s400="the body or a field of it cannot be used; `param` names the field",
            s413="the body is too large",
            s415="the body is not declared as application/json",
            s500="synthesis failed",
            s503="busy, loading or shutting down; see Retry-After",
        ),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": SynthesizeBody.model_json_schema()}},
        }
    },
)
async def synthesize(request: Request) -> Response:
    """Speak `text`; the answer begins when all of it has been made.

    A client that goes away meanwhile ends the synthesis.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedMediaType(
            f"expected Content-Type: application/json, got {ascii(content_type)[:80]}"
        )
    try:
        body = parse_body(await request.body())
    except ClientDisconnect:
        return Response(status_code=400)
    service = _service(request)
    wanted = build_request(body.text, body, service.settings)
    making = asyncio.create_task(_make(service, wanted))
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({making, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not making.done():
            logger.info("a client left before its speech was made")
            return Response(status_code=400)
        return await making
    finally:
        making.cancel()
        leaving.cancel()
        await asyncio.wait({making, leaving})


async def _make(service: SynthesisService, wanted: SynthesisRequest) -> WavResponse:
    async with service.speak(wanted) as utterance:
        info = service.info
        parts = [pcm async for pcm in utterance]
    assert utterance.stats is not None
    headers = _stats_headers(utterance.stats)
    headers["x-kazeia-voice-source"] = info.source
    headers["x-kazeia-voice"] = _header_value(utterance.request.voice or "")
    return WavResponse(parts, info.sample_rate, headers, service.settings.send_timeout_s)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class WavResponse(Response):
    """A WAV of known size, sent in pieces; a client that stops reading does not keep it alive."""

    media_type = "audio/wav"

    def __init__(
        self, parts: list[bytes], sample_rate: int, headers: dict[str, str], timeout_s: float
    ) -> None:
        self._parts = parts
        self._timeout_s = timeout_s
        data_bytes = sum(map(len, parts))
        self._head = wav_header(data_bytes, sample_rate)
        headers["content-length"] = str(WAV_HEADER_BYTES + data_bytes)
        super().__init__(headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async for piece in self._pieces():
            body = {"type": "http.response.body", "body": piece, "more_body": True}
            try:
                await asyncio.wait_for(send(body), self._timeout_s)
            except asyncio.TimeoutError:
                logger.warning("a client took no data for %.0f s; dropped", self._timeout_s)
                return  # an answer left incomplete makes the server close the connection
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield self._head
        for part in self._parts:
            for start in range(0, len(part), _SEND_BYTES):
                yield part[start : start + _SEND_BYTES]


def _stats_headers(stats: SynthesisStats) -> dict[str, str]:
    headers = {
        "x-kazeia-ended": stats.ended,
        "x-kazeia-audio-seconds": f"{stats.audio_s:.4f}",
        "x-kazeia-frames": str(stats.frames),
        "x-kazeia-chunks": str(stats.n_chunks),
    }
    for name, value in (("ttfb", stats.ttfb_s), ("rtf", stats.rtf)):
        if value is not None and math.isfinite(value):
            headers[f"x-kazeia-{name}"] = f"{value:.4f}"
    if stats.warnings:
        headers["x-kazeia-warnings"] = _header_value("; ".join(stats.warnings))
    return headers


def _header_value(text: str) -> str:
    """Text as a header may carry it: printable ASCII, of bounded length."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:500]


@router.websocket("/ws/synthesize")
async def speech_socket(websocket: WebSocket) -> None:
    """The protocol of server/PROTOCOL.md."""
    await websocket.accept()
    await SpeechSocket(websocket, _service(websocket)).run()
