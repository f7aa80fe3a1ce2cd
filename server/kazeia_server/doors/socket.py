"""Speech over a WebSocket: carries bytes between the client, a protocol and the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from starlette.websockets import WebSocket

from kazeia_server.doors.actions import (
    Action,
    Begin,
    Close,
    Drop,
    End,
    Flush,
    Push,
    SendAudio,
    SendMessage,
    SocketProtocol,
)
from kazeia_server.doors.http import service_of
from kazeia_server.doors.sending import ClientGone, Sender
from kazeia_server.doors.writing import Writing
from kazeia_server.errors import Busy, InvalidRequest, ServerError, Unavailable
from kazeia_server.logging_ import logger
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.voices.backend import SynthesisStats

__all__ = ["serve_socket"]

_TICK_S = 1.0


async def serve_socket(
    websocket: WebSocket,
    protocol: Callable[[SynthesisService, float], SocketProtocol],
    *,
    door: str,
) -> None:
    """Accept a connection and speak on it until one side closes.

    `protocol` makes its protocol from the service and the time it is now.
    """
    await websocket.accept()
    service = service_of(websocket)
    now = asyncio.get_running_loop().time()
    connection = _Connection(websocket, service, protocol(service, now), door)
    try:
        with websocket.app.state.sessions.session():
            await connection.run()
    except Busy as error:  # only the limit of sessions gets here
        await connection.refuse(error)


@dataclass(frozen=True, slots=True)
class _Spoken:
    """An utterance that has not ended."""

    task: asyncio.Task[None]
    text: Writing


class _Connection:
    """One accepted connection."""

    def __init__(
        self, websocket: WebSocket, service: SynthesisService, protocol: SocketProtocol, door: str
    ) -> None:
        self._websocket = websocket
        self._service = service
        self._protocol = protocol
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._sender = Sender(websocket, service.settings.send_timeout_s, self._over.set)
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
                stats = await self._make(begin)
                actions = self._protocol.ended(begin.index, stats, self._loop.time())
            except ClientGone:
                raise
            except Exception as error:
                if not isinstance(error, InvalidRequest | Unavailable):
                    logger.error("utterance failed: %s", error, exc_info=error)
                actions = self._protocol.failed(begin.index, error, self._loop.time())
            await self._carry_out(actions)
        except ClientGone:
            self._over.set()

    async def _make(self, begin: Begin) -> SynthesisStats:
        request, size = begin.request, self._protocol.frame_bytes
        text = self._spoken[begin.index].text
        # A text that is to be laid out as a whole is waited for; the rest is spoken as it comes.
        live = request.text_mode != "whole"
        if not live:
            whole = await text.whole(self._service.settings.text_timeout_s)
            request = replace(request, text=whole)
        async with self._service.speak(request, door=self._door, live=live) as utterance:
            info, voice = self._service.info, utterance.request.voice
            await self._carry_out(self._protocol.begun(begin.index, info, voice))
            if live:
                text.attach(utterance)
            async for data in utterance:
                for start in range(0, len(data), size):
                    part = data[start : start + size]
                    await self._carry_out(self._protocol.audio(begin.index, part))
        assert utterance.stats is not None
        return utterance.stats

    async def _carry_out(self, actions: list[Action]) -> None:
        """Do what the protocol decided."""
        # What concerns synthesis comes first and without a pause: the voice must neither go on
        # while a slow client takes its messages, nor be unknown to a cancel that comes meanwhile.
        for action in actions:
            if isinstance(action, Begin):
                self._begin(action)
            elif isinstance(action, Push | Flush | End | Drop) and action.index in self._spoken:
                self._change(self._spoken[action.index], action)
        for action in actions:
            if isinstance(action, SendMessage):
                await self._sender.message(action.message)
            elif isinstance(action, SendAudio):
                await self._sender.audio(action.data)
            elif isinstance(action, Close):
                await self._sender.close(action.code, action.reason)
                self._over.set()

    def _begin(self, begin: Begin) -> None:
        # The slot of a dropped utterance is free only when that has ended.
        before = set(self._stopping)
        if begin.after is not None and begin.after in self._spoken:
            before.add(self._spoken[begin.after].task)
        task = asyncio.create_task(self._speak(begin, before))
        self._spoken[begin.index] = _Spoken(task, Writing(self._service.settings.max_text_chars))
        task.add_done_callback(lambda _: self._spoken.pop(begin.index, None))

    def _change(self, spoken: _Spoken, action: Push | Flush | End | Drop) -> None:
        if isinstance(action, Push):
            spoken.text.push(action.text)
        elif isinstance(action, Flush):
            spoken.text.flush()
        elif isinstance(action, End):
            spoken.text.finish()
        else:
            spoken.task.cancel()
            self._stopping.add(spoken.task)
            spoken.task.add_done_callback(self._stopping.discard)
