"""The WebSocket door: carries bytes between the client, the protocol and the service."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from kazeia_server.errors import InvalidRequest, Unavailable, VoiceLoadError
from kazeia_server.logging_ import logger
from kazeia_server.requests import build_request
from kazeia_server.service import SynthesisService
from kazeia_server.ws_protocol import (
    Action,
    Close,
    Job,
    Protocol,
    SendAudio,
    SendMessage,
    SessionConfig,
    Speak,
    Stop,
)

__all__ = ["SpeechSocket"]

_FRAME_BYTES = 16 << 10  # longer chunks leave as several frames, so that a cancel can cut in


class SpeechSocket:
    """One accepted connection."""

    def __init__(self, websocket: WebSocket, service: SynthesisService) -> None:
        self._websocket = websocket
        self._service = service
        self._settings = service.settings
        self._protocol = Protocol(
            max_text_chars=self._settings.max_text_chars,
            max_message_bytes=self._settings.max_message_bytes,
            check=self._check,
        )
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()  # fair: frames leave in the order they were decided on
        self._speaking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # utterances that have not quite ended
        self._over = asyncio.Event()
        self._active_at = self._loop.time()

    async def run(self) -> None:
        """Serve the client until one side closes; never leaves an utterance running."""
        receiving = asyncio.create_task(self._receive_all())
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({receiving, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = {receiving, over, *self._tasks}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        error = None if receiving.cancelled() else receiving.exception()
        if error is not None and not isinstance(error, _ClientGone):
            raise error

    async def _receive_all(self) -> None:
        while (message := await self._next_message()) is not None:
            self._active_at = self._loop.time()
            if (text := message.get("text")) is not None:
                actions = self._protocol.receive_text(text)
            else:
                actions = self._protocol.receive_bytes(len(message.get("bytes") or b""))
            await self._carry_out(actions)

    async def _next_message(self) -> dict[str, Any] | None:
        """The client's next frame; None when the connection has ended or was idle for too long."""
        # Not wait_for: a message that arrives together with the timeout must not be lost.
        receiving = asyncio.create_task(self._receive())
        try:
            while not receiving.done():
                left = self._active_at + self._settings.idle_timeout_s - self._loop.time()
                if left <= 0 and not self._protocol.busy:
                    await self._carry_out(self._protocol.idle())
                    return None
                await asyncio.wait({receiving}, timeout=max(left, 0.05))
            message = receiving.result()
        finally:
            receiving.cancel()
        return None if message["type"] == "websocket.disconnect" else message

    async def _receive(self) -> dict[str, Any]:
        return dict(await self._websocket.receive())

    async def _speak(self, job: Job, before: set[asyncio.Task[None]]) -> None:
        """Make one utterance and report it to the protocol."""
        if before:  # the slot of a stopped utterance is free only when that has ended
            await asyncio.wait(before)
        try:
            try:
                actions = await self._make(job)
            except (InvalidRequest, Unavailable) as error:
                actions = self._protocol.failed(job.index, error)
            except _ClientGone:
                raise
            except Exception as error:
                logger.error("utterance failed: %s", error, exc_info=error)
                actions = self._protocol.failed(job.index, error)
            self._active_at = self._loop.time()
            await self._carry_out(actions)
        except _ClientGone:
            self._over.set()

    async def _make(self, job: Job) -> list[Action]:
        protocol, index = self._protocol, job.index
        request = build_request(job.text, job.options, self._settings)
        async with self._service.speak(request) as utterance:
            info, voice = self._service.info, utterance.request.voice
            async for pcm in utterance:
                for start in range(0, len(pcm), _FRAME_BYTES):
                    part = pcm[start : start + _FRAME_BYTES]
                    await self._carry_out(protocol.chunk(index, part, info, voice))
                if not protocol.is_current(index):
                    return []
        assert utterance.stats is not None
        return protocol.finished(index, utterance.stats, info, voice)

    async def _carry_out(self, actions: list[Action]) -> None:
        """Do what the protocol decided."""
        # What concerns synthesis comes first and without a pause: the voice must neither go on
        # while a slow client takes its messages, nor be unknown to a cancel that comes meanwhile.
        for action in actions:
            if isinstance(action, Stop):
                if self._speaking is not None:
                    self._speaking.cancel()
            elif isinstance(action, Speak):
                task = asyncio.create_task(self._speak(action.job, set(self._tasks)))
                self._speaking = task
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        for action in actions:
            if isinstance(action, SendMessage):
                text = json.dumps(action.message, ensure_ascii=False, allow_nan=False)
                await self._send({"type": "websocket.send", "text": text})
            elif isinstance(action, SendAudio):
                await self._send({"type": "websocket.send", "bytes": action.data})
            elif isinstance(action, Close):
                close = {"type": "websocket.close", "code": action.code, "reason": action.reason}
                await self._send(close)
                self._over.set()

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._sending:
            watchdog = self._loop.call_later(self._settings.send_timeout_s, self._give_up)
            try:
                await self._websocket.send(message)
            except (WebSocketDisconnect, RuntimeError) as error:  # RuntimeError: already closed
                raise _ClientGone from error
            finally:
                watchdog.cancel()

    def _give_up(self) -> None:
        logger.warning(
            "a client took no data for %.0f s; connection dropped", self._settings.send_timeout_s
        )
        self._over.set()

    def _check(self, config: SessionConfig) -> None:
        """Refuse a configuration that names what the voice does not have."""
        try:
            info = self._service.info
        except (Unavailable, VoiceLoadError):
            return  # said when the first utterance is asked for
        if config.sample_rate not in (None, info.sample_rate):
            raise InvalidRequest(
                f"sample_rate must be {info.sample_rate}, got {config.sample_rate}",
                param="sample_rate",
            )
        self._service.check(build_request("ok", config, self._settings))


class _ClientGone(Exception):
    """Nothing can be sent any more."""
