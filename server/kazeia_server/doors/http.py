"""What the HTTP doors share: reading a body, and answering with speech."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar, cast

from fastapi import Request, Response, WebSocket
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from kazeia_server.audio.pcm import WAV_HEADER_BYTES, wav_header
from kazeia_server.doors.fields import parse_json
from kazeia_server.errors import ServerError, ShuttingDown, UnsupportedMediaType
from kazeia_server.logging_ import logger
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.synthesis.utterance import Utterance
from kazeia_server.voices.backend import SynthesisStats
from kazeia_server.waiting import watchdog

__all__ = ["body_docs", "header_value", "read_json", "service_of", "speech_response"]

_SEND_BYTES = 64 << 10
_CLIENT_LEFT = 499  # nobody reads it; for the access log

Wrap = Callable[[AsyncIterator[bytes], Utterance], AsyncIterator[bytes]]
_ModelT = TypeVar("_ModelT", bound=BaseModel)


def service_of(connection: Request | WebSocket) -> SynthesisService:
    """The service of the application that a request came to."""
    return cast(SynthesisService, connection.app.state.service)


def body_docs(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI entry of a JSON body, for routes that read it by `read_json`."""
    content = {"application/json": {"schema": model.model_json_schema(), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


async def read_json(request: Request, model: type[_ModelT], *, what: str = "the body") -> _ModelT:
    """The JSON body of a request.

    Raises UnsupportedMediaType, or InvalidRequest saying which field is wrong and why.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedMediaType(
            f"expected Content-Type: application/json, got {ascii(content_type)[:80]}"
        )
    return parse_json(await request.body(), model, what=what)


async def speech_response(
    request: Request,
    wanted: SynthesisRequest,
    *,
    door: str,
    streamed: bool,
    wrap: Wrap | None = None,
    media_type: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer to a request for speech; a client that goes away ends the synthesis.

    `streamed`: the answer begins with the first audio, so that what fails before it still gets
    its own status.  Otherwise it is complete, with Content-Length (a WAV with its true sizes).
    `wrap` turns the bytes into something else, such as events.
    """
    service = service_of(request)
    stack = AsyncExitStack()
    starting = asyncio.create_task(_start(service, wanted, stack, door, streamed))
    leaving = asyncio.create_task(_left(request.receive))
    response: SpeechResponse | None = None
    try:
        await asyncio.wait({starting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            logger.info("a client left before its speech was made")
            return Response(status_code=_CLIENT_LEFT)
        utterance, first = await starting
        answer: dict[str, str] = {
            "content-type": media_type or wanted.output.content_type,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "x-kazeia-sample-rate": str(wanted.output.rate_for(service.info.sample_rate)),
            "x-kazeia-voice-source": service.info.source,
            "x-kazeia-voice": header_value(utterance.request.voice or ""),
            **(headers or {}),
        }
        if streamed:
            audio = _chain(first, utterance)
            body = wrap(audio, utterance) if wrap else audio
            response = SpeechResponse(body, answer, stack, service.settings.send_timeout_s)
            return response
        whole = await _whole(first, utterance, wanted, wrap)
        assert utterance.stats is not None
        answer.update(_stats_headers(utterance.stats))
        answer["content-length"] = str(len(whole))
        return SpeechResponse(
            _once(whole), answer, AsyncExitStack(), service.settings.send_timeout_s
        )
    except BaseException:
        response = None
        raise
    finally:
        leaving.cancel()
        starting.cancel()
        try:
            await asyncio.wait({starting, leaving})
        except asyncio.CancelledError:
            response = None
            raise
        finally:
            if response is None:  # nobody else will close it
                await stack.aclose()


async def _start(
    service: SynthesisService,
    wanted: SynthesisRequest,
    stack: AsyncExitStack,
    door: str,
    streamed: bool,
) -> tuple[Utterance, list[bytes]]:
    """Open the utterance and wait for its first bytes, or all of them."""
    utterance = await stack.enter_async_context(service.speak(wanted, door=door, hold=not streamed))
    parts = []
    async for data in utterance:
        parts.append(data)
        if streamed:
            break
    return utterance, parts


async def _chain(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for data in first:
        yield data
    async for data in rest:
        yield data


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _whole(
    parts: list[bytes], utterance: Utterance, wanted: SynthesisRequest, wrap: Wrap | None
) -> bytes:
    if wrap is not None:
        return b"".join([data async for data in wrap(_chain(parts, utterance), utterance)])
    body = b"".join(parts)
    if wanted.output.name != "wav":
        return body
    rate = int.from_bytes(body[24:28], "little")  # as the streamed header, of unknown size, says
    return wav_header(len(body) - WAV_HEADER_BYTES, rate) + body[WAV_HEADER_BYTES:]


class SpeechResponse(Response):
    """Bytes as they come; ends the synthesis when the client leaves or stops reading."""

    def __init__(
        self,
        body: AsyncIterator[bytes],
        headers: Mapping[str, str],
        stack: AsyncExitStack,
        timeout_s: float,
    ) -> None:
        self._body = body
        self._stack = stack
        self._timeout_s = timeout_s
        super().__init__(headers=dict(headers))
        if "content-length" not in headers:
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            sending = asyncio.create_task(self._send_all(send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done() and not sending.cancelled():
                    await sending
            except ServerError as error:  # too late for a status: the answer stays incomplete
                level = logging.INFO if isinstance(error, ShuttingDown) else logging.ERROR
                logger.log(level, "speech broke off: %s", error)
            finally:
                sending.cancel()
                leaving.cancel()
                await asyncio.wait({sending, leaving})

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        this = asyncio.current_task()
        assert this is not None
        async for data in self._body:
            for at in range(0, len(data), _SEND_BYTES):
                part = {"type": "http.response.body", "body": data[at : at + _SEND_BYTES]}
                # Not wait_for: before Python 3.12 it may swallow the cancellation of this task.
                with watchdog(self._timeout_s, partial(self._give_up, this)):
                    await send({**part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _give_up(self, sending: asyncio.Task[None]) -> None:
        """An answer that is left incomplete makes the server close the connection."""
        logger.warning("a client took no data for %.0f s; dropped", self._timeout_s)
        sending.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _stats_headers(stats: SynthesisStats) -> dict[str, str]:
    headers = {
        "x-kazeia-ended": stats.ended,
        "x-kazeia-audio-seconds": f"{stats.audio_s:.4f}",
        "x-kazeia-frames": str(stats.frames),
        "x-kazeia-chunks": str(stats.n_chunks),
    }
    figures = (("ttfb", stats.ttfb_s), ("voice-ttfb", stats.voice_ttfb_s), ("rtf", stats.rtf))
    for name, value in figures:
        if value is not None and math.isfinite(value):
            headers[f"x-kazeia-{name}"] = f"{value:.4f}"
    if stats.warnings:
        headers["x-kazeia-warnings"] = header_value("; ".join(stats.warnings))
    return headers


def header_value(text: str) -> str:
    """Text as a header may carry it: printable ASCII, of bounded length."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:500]
