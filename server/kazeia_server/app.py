"""The ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from kazeia_server import __version__
from kazeia_server.doors import page, status
from kazeia_server.doors.elevenlabs import routes as elevenlabs
from kazeia_server.doors.openai import routes as openai
from kazeia_server.doors.speech import routes as speech
from kazeia_server.ops import docs, metrics
from kazeia_server.ops.auth import KeyCheck
from kazeia_server.ops.cross_site import CrossSiteCheck
from kazeia_server.ops.failures import CatchFailures, answer_failures
from kazeia_server.ops.head import HeadAsGet
from kazeia_server.ops.limits import BodyLimit
from kazeia_server.ops.prefix import PathPrefix
from kazeia_server.ops.request_ids import RequestIds
from kazeia_server.ops.sessions import SessionLimit
from kazeia_server.settings import Settings, load_settings
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.voices.backend import BackendInfo, SynthesisBackend
from kazeia_server.voices.load import load_voice

__all__ = ["create_app"]

# ElevenLabs' before OpenAI's: of /v1/models it takes the requests of its own clients only.
_DOORS = (speech, elevenlabs, openai, status, page, metrics, docs)

_CORS_REQUEST_HEADERS = ("Authorization", "Content-Type", "xi-api-key", "x-api-key", "x-request-id")
_CORS_ANSWER_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-kazeia-ended",
    "x-kazeia-audio-seconds",
    "x-kazeia-chunks",
    "x-kazeia-frames",
    "x-kazeia-rtf",
    "x-kazeia-sample-rate",
    "x-kazeia-ttfb",
    "x-kazeia-voice",
    "x-kazeia-voice-source",
    "x-kazeia-voice-ttfb",
    "x-kazeia-warnings",
)


def create_app(
    settings: Settings | None = None,
    *,
    load: Callable[[Settings], SynthesisBackend] = load_voice,
    describe: Callable[[Settings], BackendInfo] | None = None,
) -> FastAPI:
    """The application; the voice is loaded in a thread once the server has started.

    `load` makes the voice, `describe` tells sooner what it will be; both block.  In `app.state`:
    `service`, `sessions`, `metrics`, and `wyoming`, the Wyoming server, which starts with the
    application (None: it is off).
    """
    settings = settings or load_settings()
    service = SynthesisService(settings, load, describe)
    sessions = SessionLimit(settings.max_sessions)
    counted = metrics.Metrics(service, sessions)
    service.observers.append(counted.observe)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        watching = asyncio.create_task(counted.watch_loop())
        try:
            if settings.wyoming_port is not None:
                from kazeia_server.doors.wyoming.server import start_wyoming

                app.state.wyoming = await start_wyoming(service, settings, sessions)
            yield
        finally:
            if app.state.wyoming is not None:
                await app.state.wyoming.close(0)
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await service.close()

    app = FastAPI(
        title="Kazeia",
        summary="Streaming text-to-speech",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.sessions = sessions
    app.state.metrics = counted
    app.state.wyoming = None
    for door in _DOORS:
        app.include_router(door.router)
    _surround(app, settings)
    return app


def _surround(app: FastAPI, settings: Settings) -> None:
    """Put the middleware around `app`; the last one added stands outermost."""
    app.add_middleware(CatchFailures)
    app.add_middleware(
        BodyLimit, max_bytes=settings.max_body_bytes, timeout_s=settings.send_timeout_s
    )
    app.add_middleware(KeyCheck, settings=settings)
    app.add_middleware(CrossSiteCheck, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=_CORS_REQUEST_HEADERS,
            expose_headers=_CORS_ANSWER_HEADERS,
        )
    if settings.root_path.strip("/"):
        app.add_middleware(PathPrefix, prefix=settings.root_path)
    app.add_middleware(HeadAsGet)
    app.add_middleware(RequestIds)
    answer_failures(app)
    docs.describe_operations(app, settings)
