"""The WebSocket door: carries bytes between the client, the protocol and the service."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.websockets import WebSocket

from kazeia_server.doors.qwen_fields import check_task
from kazeia_server.doors.sending import ClientGone, Sender
from kazeia_server.doors.ws_messages import SessionConfig
from kazeia_server.doors.ws_protocol import (
    Action,
    Close,
    Job,
    Mark,
    Protocol,
    SendAudio,
    SendMessage,
    Speak,
    Stop,
    Write,
)
from kazeia_server.errors import InvalidRequest, TextTimeout, Unavailable, VoiceLoadError
from kazeia_server.logging_ import logger
from kazeia_server.ops.auth import KEY_TIMEOUT_S, accepts, authorized, brought_key
from kazeia_server.requests import build_request, check_request
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.synthesis.utterance import Utterance
from kazeia_server.waiting import within

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
            check_key=None if authorized(websocket.scope) else partial(accepts, self._settings),
            key_given=brought_key(websocket.scope),
        )
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._sender = Sender(websocket, self._settings.send_timeout_s, self._over.set)
        self._speaking: asyncio.Task[None] | None = None
        self._listening: dict[int, Utterance] = {}  # by job: takes text that comes now
        self._written = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()  # utterances that have not quite ended
        self._active_at = self._loop.time()

    async def run(self) -> None:
        """Serve the client until one side closes; never leaves an utterance running."""
        receiving = asyncio.create_task(self._receive_all())
        over = asyncio.create_task(self._over.wait())
        draining = asyncio.create_task(self._drain())
        try:
            await asyncio.wait({receiving, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = {receiving, over, draining, *self._tasks}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        error = None if receiving.cancelled() else receiving.exception()
        if error is not None and not isinstance(error, ClientGone):
            raise error

    async def _drain(self) -> None:
        """When the server goes away: end once nothing is being spoken."""
        await self._service.draining.wait()
        with suppress(ClientGone):
            await self._carry_out(self._protocol.drain())

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
                left = self._active_at + self._patience_s - self._loop.time()
                if left <= 0 and not self._protocol.busy:
                    await self._carry_out(self._protocol.idle())
                    return None
                await asyncio.wait({receiving}, timeout=max(left, 0.05))
            message = receiving.result()
        finally:
            receiving.cancel()
        return None if message["type"] == "websocket.disconnect" else message

    @property
    def _patience_s(self) -> float:
        """How long the client may be silent."""
        longest = self._settings.idle_timeout_s
        return min(longest, KEY_TIMEOUT_S) if self._protocol.needs_key else longest

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
            except ClientGone:
                raise
            except Exception as error:
                logger.error("utterance failed: %s", error, exc_info=error)
                actions = self._protocol.failed(job.index, error)
            self._active_at = self._loop.time()
            await self._carry_out(actions)
        except ClientGone:
            self._over.set()

    async def _make(self, job: Job) -> list[Action]:
        protocol, index = self._protocol, job.index
        # A text that is to be laid out as a whole is waited for; the rest is spoken as it comes.
        whole = job.config.text_mode == "whole"
        if whole:
            await self._completed(job)
        text = job.text if whole else ""
        request = build_request(text, job.config, self._settings, output=job.config.output)
        async with self._service.speak(request, door="websocket", live=not whole) as utterance:
            if not whole:
                self._listening[job.index] = utterance
                _hand_over(job, utterance)
            info, voice = self._service.info, utterance.request.voice
            try:
                async for data in utterance:
                    for start in range(0, len(data), _FRAME_BYTES):
                        part = data[start : start + _FRAME_BYTES]
                        await self._carry_out(protocol.chunk(index, part, info, voice))
                    if not protocol.is_current(index):
                        return []
            finally:
                self._listening.pop(job.index, None)
        assert utterance.stats is not None
        return protocol.finished(index, utterance.stats, info, voice)

    async def _completed(self, job: Job) -> None:
        """Wait until the text of a job is complete."""
        left = self._settings.text_timeout_s
        while not job.complete:
            self._written.clear()
            if not await within(self._written.wait(), left):
                raise TextTimeout(
                    f"no text came for {left:g} s: expected more text, or input.done", param="text"
                )

    async def _carry_out(self, actions: list[Action]) -> None:
        """Do what the protocol decided."""
        # What concerns synthesis comes first and without a pause: the voice must neither go on
        # while a slow client takes its messages, nor be unknown to a cancel that comes meanwhile.
        for action in actions:
            if isinstance(action, Stop):
                if self._speaking is not None:
                    self._speaking.cancel()
            elif isinstance(action, Write):
                self._written.set()
                if action.job.index in self._listening:
                    _hand_over(action.job, self._listening[action.job.index])
            elif isinstance(action, Speak):
                task = asyncio.create_task(self._speak(action.job, set(self._tasks)))
                self._speaking = task
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        for action in actions:
            if isinstance(action, SendMessage):
                await self._sender.message(action.message)
            elif isinstance(action, SendAudio):
                await self._sender.audio(action.data)
            elif isinstance(action, Close):
                await self._sender.close(action.code, action.reason)
                self._over.set()

    def _check(self, config: SessionConfig) -> None:
        """Refuse a configuration that names what the voice does not have."""
        try:
            info = self._service.info
        except (Unavailable, VoiceLoadError):
            return  # said when the first utterance is asked for
        check_task(config.task_type, info)
        check_request(build_request("", config, self._settings), info, self._settings, live=True)


def _hand_over(job: Job, utterance: Utterance) -> None:
    """Give an utterance what has been written of its text since the last time."""
    for what in job.take():
        if isinstance(what, str):
            utterance.push_text(what)
        elif what is Mark.FLUSH:
            utterance.flush_text()
        else:
            utterance.finish_text()
