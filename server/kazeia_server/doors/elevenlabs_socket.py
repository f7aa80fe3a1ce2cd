"""The ElevenLabs WebSocket doors: carry bytes between client, protocol and service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from starlette.websockets import WebSocket

from kazeia_server.audio.formats import parse_output_format
from kazeia_server.doors.elevenlabs_messages import (
    Action,
    Begin,
    Close,
    Drop,
    End,
    Flush,
    Push,
    SendMessage,
)
from kazeia_server.doors.elevenlabs_protocol import Limits, Protocol
from kazeia_server.doors.sending import ClientGone, Sender
from kazeia_server.errors import InvalidRequest, ServerError
from kazeia_server.logging_ import logger
from kazeia_server.ops.auth import accepts, authorized, brought_key
from kazeia_server.requests import build_request, check_text, parse_options
from kazeia_server.settings import Settings
from kazeia_server.synthesis.backend import SynthesisRequest
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.synthesis.utterance import Utterance

__all__ = ["DEFAULT_OUTPUT_FORMAT", "ElevenLabsSocket"]

DEFAULT_OUTPUT_FORMAT = "mp3_44100_128"
_DEFAULT_INACTIVITY_S = 20
_LONGEST_INACTIVITY_S = 180
_FRAME_BYTES = 12 << 10  # a multiple of 6: whole samples, and base64 without padding
_TICK_S = 1.0


class ElevenLabsSocket:
    """One accepted connection, spoken to in the protocol of `kind`."""

    def __init__(
        self, websocket: WebSocket, service: SynthesisService, voice: str, kind: type[Protocol]
    ) -> None:
        self._websocket = websocket
        self._service = service
        self._settings = service.settings
        self._loop = asyncio.get_running_loop()
        self._wanted: SynthesisRequest | ServerError
        inactivity_s = _DEFAULT_INACTIVITY_S
        try:
            self._wanted = _request(voice, websocket.query_params, self._settings)
            inactivity_s = _inactivity(websocket.query_params)
        except ServerError as error:
            self._wanted = error
        self._protocol = kind(
            Limits(
                max_message_bytes=self._settings.max_message_bytes,
                max_text_chars=self._settings.max_text_chars,
                inactivity_s=inactivity_s,
                patience_s=0.9 * self._settings.text_timeout_s,
            ),
            now=self._loop.time(),
            check=self._check,
            check_text=lambda text: check_text(
                text, self._settings, clean=self._settings.clean_text
            ),
            authorized=authorized(websocket.scope),
            accepts=lambda key: accepts(self._settings, key),
            key_given=brought_key(websocket.scope),
            sentences=websocket.query_params.get("auto_mode", "").lower() in ("true", "1"),
        )
        self._over = asyncio.Event()
        self._sender = Sender(websocket, self._settings.send_timeout_s, self._over.set)
        self._spoken: dict[int, _Spoken] = {}
        self._stopping: set[asyncio.Task[None]] = set()  # dropped, but not quite ended

    async def run(self) -> None:
        """Serve the client until one side closes; never leaves an utterance running."""
        parts = (self._receive_all(), self._tick(), self._leave(), self._wait_over())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks += [*self._stopping, *(spoken.task for spoken in self._spoken.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, ClientGone):
                raise error

    async def refuse(self, error: ServerError) -> None:
        """Say why the connection is not served, and close it."""
        with suppress(ClientGone):
            await self._carry_out(self._protocol.refuse(error))

    async def _wait_over(self) -> None:
        await self._over.wait()

    async def _receive_all(self) -> None:
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            now = self._loop.time()
            if (text := message.get("text")) is not None:
                actions = self._protocol.receive_text(text, now)
            else:
                actions = self._protocol.receive_bytes(len(message.get("bytes") or b""), now)
            await self._carry_out(actions)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            await self._carry_out(self._protocol.tick(self._loop.time()))

    async def _leave(self) -> None:
        await self._service.draining.wait()
        await self._carry_out(self._protocol.leave())
        await self._over.wait()

    async def _speak(self, begin: Begin, before: set[asyncio.Task[None]]) -> None:
        """Make one utterance and report it to the protocol."""
        if before:
            await asyncio.wait(before)
        try:
            try:
                await self._make(begin)
                actions = self._protocol.ended(begin.index, self._loop.time())
            except ClientGone:
                raise
            except Exception as error:
                if not isinstance(error, ServerError):
                    logger.error("utterance failed: %s", error, exc_info=error)
                actions = self._protocol.failed(begin.index, error, self._loop.time())
            await self._carry_out(actions)
        except ClientGone:
            self._over.set()

    async def _make(self, begin: Begin) -> None:
        wanted = replace(self._request(), speed=begin.speed)
        async with self._service.speak(wanted, door="elevenlabs", live=True) as utterance:
            self._spoken[begin.index].attach(utterance)
            async for data in utterance:
                for start in range(0, len(data), _FRAME_BYTES):
                    part = data[start : start + _FRAME_BYTES]
                    await self._carry_out(self._protocol.audio(begin.index, part))

    async def _carry_out(self, actions: list[Action]) -> None:
        """Do what the protocol decided."""
        # What concerns synthesis comes first and without a pause: the voice must neither go on
        # while a slow client takes its messages, nor be unknown to a close that comes meanwhile.
        for action in actions:
            if isinstance(action, Begin):
                self._begin(action)
            elif isinstance(action, Push | Flush | End) and action.index in self._spoken:
                self._spoken[action.index].give(action)
            elif isinstance(action, Drop) and action.index in self._spoken:
                task = self._spoken[action.index].task
                task.cancel()
                self._stopping.add(task)
                task.add_done_callback(self._stopping.discard)
        for action in actions:
            if isinstance(action, SendMessage):
                await self._sender.message(action.message)
            elif isinstance(action, Close):
                await self._sender.close(action.code, action.reason)
                self._over.set()

    def _begin(self, begin: Begin) -> None:
        # The slot of a dropped utterance is free only when that has ended.
        before = set(self._stopping)
        if begin.after is not None and begin.after in self._spoken:
            before.add(self._spoken[begin.after].task)
        task = asyncio.create_task(self._speak(begin, before))
        self._spoken[begin.index] = _Spoken(task)
        task.add_done_callback(lambda _: self._spoken.pop(begin.index, None))

    def _request(self) -> SynthesisRequest:
        if isinstance(self._wanted, ServerError):
            raise self._wanted
        return self._wanted

    def _check(self) -> None:
        """Refuse a connection that asks for what the voice does not have."""
        self._service.check(self._request(), live=True)


class _Spoken:
    """An utterance, and what is written for it before it has a slot."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self._utterance: Utterance | None = None
        self._early: list[Push | Flush | End] = []

    def attach(self, utterance: Utterance) -> None:
        """The utterance has begun."""
        self._utterance = utterance
        early, self._early = self._early, []
        for action in early:
            self.give(action)

    def give(self, action: Push | Flush | End) -> None:
        """Text, or what becomes of it."""
        if self._utterance is None:
            self._early.append(action)
        elif isinstance(action, Push):
            self._utterance.push_text(action.text)
        elif isinstance(action, Flush):
            self._utterance.flush_text()
        else:
            self._utterance.finish_text()


def _request(voice: str, query: Mapping[str, str], settings: Settings) -> SynthesisRequest:
    """What the address of a connection asks for; its text and speed come later."""
    options = parse_options(
        {
            "voice": voice,
            "language": query.get("language_code") or None,
            "seed": _whole_number(query, "seed"),
        }
    )
    output = parse_output_format(query.get("output_format") or DEFAULT_OUTPUT_FORMAT)
    return build_request("", options, settings, output=output)


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
