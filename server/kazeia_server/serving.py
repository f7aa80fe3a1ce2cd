"""Running the application under uvicorn."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from kazeia_server.app import create_app
from kazeia_server.errors import ServerError
from kazeia_server.logging_ import configure_logging, logger
from kazeia_server.ops.connections import BoundedHttp
from kazeia_server.settings import PREFIX, Settings
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.voices.load import describe_voice

__all__ = ["SpeechServer", "run_server", "server_config"]

# A message of more than max_message_bytes gets an error; one of more than this many times that,
# which uvicorn will not even collect, loses the connection (1009).
_HARD_MESSAGE_FACTOR = 4
# Together with the default of shutdown_timeout_s less than the 10 s after which Docker kills.
_LAST_WORDS_S = 0.5  # for connections to say how their last utterance ended
_LOADING_S = 5.0  # for a voice that is still being loaded
_CLOSING_S = 1  # for answers that are complete but not yet sent


def run_server(settings: Settings) -> None:
    """Serve until told to stop by SIGINT or SIGTERM.

    Raises VoiceLoadError when the voice cannot be loaded, ServerError when an address cannot
    be listened on.
    """
    configure_logging(settings.log_level, settings.log_format)
    _check_port(settings.host, settings.port)
    settings = _with_free_wyoming_port(settings)
    if not settings.api_keys and not _is_loopback(settings.host):
        logger.warning(
            "whoever reaches %s may speak: no API key is required (%sAPI_KEYS)",
            settings.host,
            PREFIX,
        )
    if settings.wyoming_port is None:
        reason = f"; it knows no keys, {PREFIX}WYOMING_PORT=10200 turns it on all the same"
        logger.info("Wyoming is off%s", reason if settings.api_keys else "")
    # Only Wyoming asks for the voice before it is loaded.
    describe = describe_voice if settings.wyoming_port is not None else None
    app = create_app(settings, describe=describe)
    service: SynthesisService = app.state.service
    server = SpeechServer(server_config(app, settings), app, needs_voice=True)
    source = "the built-in voice" if settings.model is None else f"the model {settings.model}"
    logger.info("loading %s", source)
    if os.getpid() == 1:
        # At its end uvicorn sends the signal to itself again, without a handler. Process 1, as in a
        # container, does not get it, and under an emulation of the processor waits for it forever.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        server.run()
    except SystemExit:  # uvicorn has logged why it cannot listen
        raise ServerError(f"cannot listen on {settings.host}:{settings.port}") from None
    finally:
        service.join(_LOADING_S)
    if service.failure is not None:
        raise service.failure


def server_config(app: object, settings: Settings) -> uvicorn.Config:
    """uvicorn's configuration for `app`."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        http=BoundedHttp,
        log_config=None,
        access_log=settings.log_level == "debug",
        ws_max_size=settings.max_message_bytes * _HARD_MESSAGE_FACTOR,
        ws_per_message_deflate=False,  # PCM hardly compresses, and it costs time before each send
        ws_ping_interval=20.0,
        ws_ping_timeout=60.0,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=_CLOSING_S,
        server_header=False,
        proxy_headers=True,
        forwarded_allow_ips=settings.forwarded_allow_ips,
    )


class SpeechServer(uvicorn.Server):
    """uvicorn, which by itself closes every WebSocket the moment it is told to stop.

    Here the first signal begins a drain: `/readyz` fails and new utterances are refused while
    the ports are still open; what is being spoken may end until `shutdown_timeout_s` have passed;
    then what is left is cancelled, and WebSockets are closed with 1012.  A second signal ends all
    at once.

    `needs_voice`: it also ends when the voice turns out not to be usable.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, *, needs_voice: bool = False) -> None:
        super().__init__(config)
        self._application = app
        self._needs_voice = needs_voice
        self._watching: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._needs_voice:
            self._watching = asyncio.create_task(self._stop_without_voice())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._watching is not None:
            self._watching.cancel()
        draining = asyncio.create_task(self._drain(self._application.state))
        while not draining.done() and not self.force_exit:
            await asyncio.wait({draining}, timeout=0.05)
        if draining.done() and (error := draining.exception()) is not None:
            logger.error("the drain failed: %s", error, exc_info=error)
        draining.cancel()
        await super().shutdown(sockets)

    async def _drain(self, state: Any) -> None:
        service: SynthesisService = state.service
        deadline_s = service.settings.shutdown_timeout_s
        if service.running or service.waiting:
            logger.info("shutting down: what is being spoken may end within %d s", deadline_s)
        ending = [service.drain(deadline_s)]
        if state.wyoming is not None:
            ending.append(state.wyoming.close(deadline_s))
        await asyncio.gather(*ending)
        await service.close()
        # Doors close their WebSockets themselves once nothing is spoken on them.
        last_words = asyncio.ensure_future(state.sessions.all_ended())
        await asyncio.wait({last_words}, timeout=_LAST_WORDS_S)
        last_words.cancel()

    async def _stop_without_voice(self) -> None:
        service: SynthesisService = self._application.state.service
        if await service.settled() == "failed":
            self.should_exit = True


def _with_free_wyoming_port(settings: Settings) -> Settings:
    """The settings; without Wyoming if its port is taken and nobody asked for it by number."""
    if settings.wyoming_port is None:
        return settings
    try:
        _check_port(settings.host, settings.wyoming_port)
    except ServerError as error:
        if "wyoming_port" in settings.model_fields_set:
            raise
        logger.warning("no Wyoming: %s", error)
        return settings.model_copy(update={"wyoming_port": None})
    return settings


def _check_port(host: str, port: int) -> None:
    """Raise ServerError if the address is taken or forbidden, or the host unknown.

    Asked before a model is loaded, which can take a minute; whoever takes the port meanwhile is
    noticed when it is opened.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return  # "localhost" may name a family of addresses that this machine lacks
        reason = error.strerror or error
        raise ServerError(f"cannot listen on {host}:{port}: {reason}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
