"""Text in while it is written, audio out while it is made: a session over a WebSocket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from kazeia_client.connecting import Link
from kazeia_client.deadlines import Deadline
from kazeia_client.errors import AnswerTimeout, UnexpectedAnswer, UsageError
from kazeia_client.formats import AudioFormat
from kazeia_client.options import SpeechOptions, given
from kazeia_client.protocol import Audio, SessionProtocol, SpeechEvent, Work
from kazeia_client.speech import SpeechStats
from kazeia_client.text_source import Text, TextSource

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AsyncSession", "AsyncUtterance", "UtteranceFacts"]

_ABNORMAL = 1006
_OUR_REASONS = (1002, 1007, 1009)  # of websockets: no WebSocket, no UTF-8, too large a frame


class AsyncSession:
    """Utterance after utterance on one connection; made by `AsyncClient.session`.

    Audio is taken from the connection as it comes and kept until it is asked for, up to
    `max_buffered` bytes; beyond them the server has to wait, and gives up after a while.
    """

    def __init__(
        self, link: Link, options: SpeechOptions, *, patience_s: float, max_buffered: int
    ) -> None:
        self._link = link
        self._options = given(options)
        self._in_force: dict[str, Any] = {}
        self._patience_s = patience_s
        self._max_buffered = max_buffered
        self._protocol = SessionProtocol()
        self._socket: ClientConnection | None = None
        self._outgoing: deque[str] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._news = _News()
        self._tasks: set[asyncio.Task[None]] = set()
        self._feeds: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Open the connection; returns when the server has accepted key and options.

        Raises KazeiaError.
        """
        self._socket = await self._link.websocket()
        self._tasks = {
            asyncio.create_task(self._read(self._socket)),
            asyncio.create_task(self._write(self._socket)),
        }
        await self._configure(self._options, self._link.address.key)

    async def utterance(self, **options: Unpack[SpeechOptions]) -> AsyncUtterance:
        """Begin an utterance, which takes text until it is finished or cancelled.

        It is spoken after those begun before it; `options` count for it alone, over those of the
        session.  Waits for the text of what `speak` began.  Raises UsageError while another still
        takes text, and KazeiaError.
        """
        if self._feeds:
            await asyncio.wait(self._feeds)
        wanted = {**self._options, **given(options)}
        if wanted != self._in_force:
            await self._configure(wanted)
        work, messages = self._protocol.begin()
        await self._send(messages)
        return AsyncUtterance(self, work)

    async def speak(self, text: Text, **options: Unpack[SpeechOptions]) -> AsyncUtterance:
        """Begin an utterance of this text, which may be an iterable that is still being written.

        What the iterable raises gives up the session's speech and is raised where the audio is
        taken.
        """
        utterance = await self.utterance(**options)
        if isinstance(text, str):
            await utterance.push_text(text)
            await utterance.finish()
        else:
            source = TextSource(text)
            source.forget()
            self._feed(utterance, source, own=True)
        return utterance

    async def cancel(self) -> None:
        """Be silent: every utterance is given up, also audio of it that nobody has taken yet."""
        await self._cancel()

    async def close(self) -> None:
        """Close the connection; what is still being spoken is given up."""
        self._protocol.end(UsageError("the session is closed"))
        self._news.tell()
        feeds, self._feeds = self._feeds, set()
        for task in feeds:
            task.cancel()
        if feeds:
            await asyncio.wait(feeds)
        if self._socket is not None:
            with suppress(ConnectionClosed, OSError):
                await self._socket.close()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # For utterances.

    async def _send(self, messages: list[str]) -> None:
        """Messages leave in the order of the calls, also of one that is cancelled meanwhile."""
        self._outgoing.extend(messages)
        self._wake.set()
        while self._outgoing and self._protocol.ended is None:
            await self._news.wait(None)

    async def _event(self, work: Work) -> SpeechEvent | None:
        """The next event of an utterance; None after the last."""
        await self._until(lambda: bool(work.events) or work.over, "audio", self._patience_s)
        event = work.take()
        self._room.set()
        return event

    async def _begun(self, work: Work) -> AudioFormat | None:
        """Wait for the first audio, or the end."""
        await self._until(lambda: work.started is not None or work.over, "audio", self._patience_s)
        if work.started is None and work.error is not None:
            raise work.error
        return work.started.format if work.started is not None else None

    async def _until(self, come: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait for `what`, however much audio lies before it that nobody takes."""
        deadline = Deadline(seconds)
        while not come():
            self._room.set()
            if not await self._news.wait(deadline):
                raise AnswerTimeout(f"no {what} came for {seconds:g} s")

    async def _cancel(self, error: Exception | None = None, work: Work | None = None) -> None:
        messages = self._protocol.cancel()
        for task in self._feeds:  # what writes the text need not go on
            if task is not asyncio.current_task():
                task.cancel()
        if work is not None and error is not None:
            work.events.clear()
            work.error = error
        self._news.tell()
        self._room.set()
        await self._send(messages)

    def _feed(self, utterance: AsyncUtterance, source: TextSource, *, own: bool) -> None:
        """Write a text in the background; `own`: nobody else needs the source."""
        task = asyncio.create_task(self._write_all(utterance, source, own))
        self._feeds.add(task)
        task.add_done_callback(self._feeds.discard)

    async def _write_all(self, utterance: AsyncUtterance, source: TextSource, own: bool) -> None:
        work = utterance._work
        try:
            async for piece in source.pieces():
                if work.over:
                    break
                await utterance.push_text(piece)
            await utterance.finish()
        except Exception as error:
            if not work.over:
                await self._cancel(error, work)
        finally:
            if own:
                await source.close()

    # The connection.

    async def _configure(self, options: dict[str, Any], key: str | None = None) -> None:
        await self._send(self._protocol.configure(options, key))
        await self._until(self._protocol.settled, "answer", self._link.timeout_s)
        self._in_force = options

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for data in socket:
                self._protocol.receive(data)
                self._news.tell()
                # Whoever waits for something behind what nobody takes must not wait for ever.
                while self._protocol.buffered > self._max_buffered and not self._news.awaited:
                    self._room.clear()
                    await self._room.wait()
        except ConnectionClosed as error:
            if error.rcvd is None and error.sent is not None and error.sent.code in _OUR_REASONS:
                self._protocol.end(
                    UnexpectedAnswer(
                        f"the server broke the protocol: {error.sent.reason or error.sent.code}"
                    )
                )
        finally:
            code = socket.close_code
            self._protocol.closed(None if code == _ABNORMAL else code, socket.close_reason or "")
            self._news.tell()

    async def _write(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):  # the reading side tells why
            while True:
                while self._outgoing:
                    await socket.send(self._outgoing[0])
                    self._outgoing.popleft()
                self._news.tell()
                self._wake.clear()
                await self._wake.wait()


class UtteranceFacts:
    """What is known of an utterance."""

    def __init__(self, work: Work) -> None:
        self._work = work

    @property
    def format(self) -> AudioFormat | None:
        """What the bytes are, from the first of them on."""
        return self._work.started.format if self._work.started else None

    @property
    def voice(self) -> str | None:
        """The name of the voice that speaks, from the first audio on; None: it has no name."""
        return self._work.started.voice if self._work.started else None

    @property
    def stats(self) -> SpeechStats | None:
        """How it went, after its end; None where it was cancelled or failed."""
        return self._work.stats

    @property
    def is_over(self) -> bool:
        """Whether the server has sent all there is, or the utterance was cancelled or failed."""
        return self._work.over


class AsyncUtterance(UtteranceFacts):
    """One utterance of a session: text goes in, audio comes out by iterating over it.

    The iteration gives bytes in the order of the speech (PCM: whole 16-bit samples) and ends with
    the utterance, also where that is cancelled; it raises KazeiaError where the utterance failed.
    """

    def __init__(self, session: AsyncSession, work: Work) -> None:
        super().__init__(work)
        self._session = session

    async def push_text(self, text: str) -> None:
        """More text, in pieces of any size: spaces belong to them.

        What comes after the end of the speech is passed over.  Raises UsageError after `finish`.
        """
        await self._session._send(self._session._protocol.write(self._work, text))

    async def flush(self) -> None:
        """Speak what there is, as if a piece of speech ended here."""
        await self._session._send(self._session._protocol.flush(self._work))

    async def finish(self) -> None:
        """The text is complete."""
        await self._session._send(self._session._protocol.finish(self._work))

    async def cancel(self) -> None:
        """Be silent, unless all of the utterance has been taken already.

        The protocol knows no other way than to give up everything on the session: utterances
        begun before or after it are cancelled too.
        """
        if not self._work.heard:
            await self._session.cancel()

    async def started(self) -> AudioFormat | None:
        """Wait for the first audio; takes nothing of it.  None: cancelled before.

        Raises KazeiaError where the utterance failed before.
        """
        return await self._session._begun(self._work)

    async def events(self) -> AsyncIterator[SpeechEvent]:
        """Everything that happens to the utterance, the audio included."""
        while (event := await self._session._event(self._work)) is not None:
            yield event

    def __aiter__(self) -> AsyncUtterance:
        return self

    async def __anext__(self) -> bytes:
        while (event := await self._session._event(self._work)) is not None:
            if isinstance(event, Audio):
                return event.data
        raise StopAsyncIteration

    async def read(self) -> bytes:
        """All audio that has not been taken yet."""
        return b"".join([data async for data in self])


class _News:
    """Wakes whoever waits for something to have changed."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()

    @property
    def awaited(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def tell(self) -> None:
        """Something has changed."""
        for future in self._waiting:
            _settle(future, True)

    async def wait(self, deadline: Deadline | None) -> bool:
        """Wait for news; False: none came before the deadline."""
        # Not asyncio.wait_for: before Python 3.12 it may swallow the cancellation of this task.
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = (
            loop.call_later(deadline.left_s, _settle, future, False)
            if deadline is not None
            else None
        )
        self._waiting.add(future)
        try:
            return await future
        finally:
            self._waiting.discard(future)
            if timer is not None:
                timer.cancel()


def _settle(future: asyncio.Future[bool], news: bool) -> None:
    if not future.done():
        future.set_result(news)
