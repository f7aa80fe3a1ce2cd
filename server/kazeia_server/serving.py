"""Running the application under uvicorn."""

from __future__ import annotations

import asyncio

import uvicorn

from kazeia_server.app import create_app
from kazeia_server.errors import ServerError
from kazeia_server.logging_ import configure_logging, logger
from kazeia_server.service import SynthesisService
from kazeia_server.settings import Settings

__all__ = ["run_server", "server_config"]

# A message of more than max_message_bytes gets an error; one of more than this many times that,
# which uvicorn will not even collect, loses the connection (1009).
_HARD_MESSAGE_FACTOR = 4


def run_server(settings: Settings) -> None:
    """Serve until told to stop by SIGINT or SIGTERM.

    Raises VoiceLoadError when the voice cannot be loaded, ServerError when the address cannot
    be listened on.
    """
    configure_logging(settings.log_level)
    app = create_app(settings)
    service: SynthesisService = app.state.service
    server = uvicorn.Server(server_config(app, settings))
    source = "the built-in voice" if settings.model is None else f"the model {settings.model}"
    logger.info("loading %s", source)
    try:
        asyncio.run(_serve(server, service))
    except SystemExit:  # uvicorn has logged why it cannot listen
        raise ServerError(f"cannot listen on {settings.host}:{settings.port}") from None
    if service.failure is not None:
        raise service.failure


def server_config(app: object, settings: Settings) -> uvicorn.Config:
    """uvicorn's configuration for `app`."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=settings.log_level == "debug",
        ws_max_size=settings.max_message_bytes * _HARD_MESSAGE_FACTOR,
        ws_per_message_deflate=False,  # PCM hardly compresses, and it costs time before each send
        ws_ping_interval=20.0,
        ws_ping_timeout=60.0,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
        server_header=False,
    )


async def _serve(server: uvicorn.Server, service: SynthesisService) -> None:
    async def stop_without_voice() -> None:
        if await service.settled() == "failed":
            server.should_exit = True

    watching = asyncio.create_task(stop_without_voice())
    try:
        await server.serve()
    finally:
        watching.cancel()
