"""The Wyoming door: speech for Home Assistant and its kin, over TCP.

`describe`, `ping`, `synthesize`, and text that is spoken while it arrives (`synthesize-start`,
`synthesize-chunk`, `synthesize-stop`).  Events of other types are passed over, as the protocol
asks.  What holds for a connection:

- Requests are spoken one after another, in order; up to 16 wait.  Each gets one `audio-start`,
  `audio-chunk`s and one `audio-stop`; a streaming request then `synthesize-stopped`, which alone
  is the answer to one without any visible text.
- Between `synthesize-start` and `synthesize-stop`, `synthesize` is ignored: it repeats the whole
  text for servers that do not stream.
- An error is an `error` event, and the end of the connection: Home Assistant passes over `error`
  and would wait for ever.
- `describe` is answered within a second, while the voice is being loaded by what its file says.
  Where that takes longer, the answer is `error` with code `loading`: Home Assistant keeps the first
  `info` it gets, so one without voices would leave it mute until somebody reloads it, whereas it
  tries again after an end of the connection.
- A client that closes its side, be it only the sending half, has left: what is spoken for it ends.

The protocol knows neither keys nor encryption.  The server is not announced by mDNS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Event, async_write_event
from wyoming.info import Describe
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
)

from kazeia_server.doors.writing import Writing
from kazeia_server.doors.wyoming.messages import (
    EventDecoder,
    IdleTimeout,
    PingData,
    StartData,
    SynthesizeData,
    TextData,
    error_event,
    info_event,
    read_data,
    speech_options,
)
from kazeia_server.errors import (
    Busy,
    InvalidRequest,
    ServerError,
    ShuttingDown,
)
from kazeia_server.logging_ import logger
from kazeia_server.ops.sessions import SessionLimit
from kazeia_server.settings import Settings
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.synthesis.utterance import Utterance
from kazeia_server.waiting import watchdog, within

__all__ = ["WyomingServer", "start_wyoming"]

_MAX_WAITING = 16
_LOADING_WAIT_S = 0.7  # Home Assistant waits a second for `info`
_READ_BYTES = 16 << 10
_CHUNK_BYTES = 16 << 10  # longer chunks leave in parts, so that the send timeout is for each
_FAREWELL_S = 1.0  # for a client to close after its last event
_LAST_WORDS_S = 0.5  # the same, when the server ends
_WIDTH, _CHANNELS = 2, 1


async def start_wyoming(
    service: SynthesisService, settings: Settings, sessions: SessionLimit
) -> WyomingServer:
    """Listen on `settings.host` and `settings.wyoming_port` (0: any free port).

    Raises ServerError when the address cannot be listened on.
    """
    server = WyomingServer(service, settings, sessions)
    await server.start()
    return server


class WyomingServer:
    """The listening socket and its connections.  Belongs to one event loop."""

    def __init__(
        self, service: SynthesisService, settings: Settings, sessions: SessionLimit
    ) -> None:
        self._service = service
        self._settings = settings
        self._sessions = sessions
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._draining = False
        self.port = 0  # that is listened on, once started

    async def start(self) -> None:
        """Begin to listen; see start_wyoming."""
        host, port = self._settings.host, self._settings.wyoming_port
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise ServerError(
                f"cannot listen on {host}:{port} for Wyoming: {error.strerror or error}"
            ) from None
        self.port = int(self._server.sockets[0].getsockname()[1])
        logger.info("Wyoming listens on %s:%d", host, self.port)
        if self._settings.api_keys:
            logger.warning("Wyoming knows no keys: whoever reaches port %d may speak", self.port)

    async def close(self, grace_s: float | None = None) -> None:
        """Accept nobody any more, let what is being spoken end, then close every connection.

        At most `grace_s` seconds are waited (None: `settings.shutdown_timeout_s`).  Cancelling
        this ends the wait at once; may be called again.
        """
        if self._server is None:
            return
        self._server.close()
        self._draining = True
        for connection in self._connections.values():
            connection.drain()
        limit = self._settings.shutdown_timeout_s if grace_s is None else grace_s
        tasks = set(self._connections)
        try:
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=limit)
            for task in tasks:
                self._connections[task].end(ShuttingDown("the server is shutting down"))
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:  # one whose voice does not let go ends when the service is closed
                await asyncio.wait(tasks, timeout=_LAST_WORDS_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer, self._service, self._settings)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        try:
            with self._sessions.session():
                if self._draining:
                    connection.drain()
                await connection.run()
        except Busy as error:
            await connection.refuse(error)
        except Exception:
            logger.exception("a Wyoming connection failed")
        finally:
            del self._connections[task]
            writer.transport.abort()  # nothing is left to be sent, or nobody takes it


class _ClientGone(Exception):
    """Nothing more can be sent or received."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Something to speak."""

    asked: StartData
    text: str | Writing


class _Connection:
    """One client."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        service: SynthesisService,
        settings: Settings,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._service = service
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._n_jobs = 0  # that wait or are being spoken
        self._live: Writing | None = None  # open for more text
        self._speaking = False
        self._draining = False
        self._over = asyncio.Event()
        self._reason: ServerError | None = None
        self._sending = asyncio.Lock()
        self._active_at = self._loop.time()

    async def run(self) -> None:
        """Serve the client until one side is done; never leaves an utterance running."""
        tasks = [
            asyncio.create_task(work)
            for work in (self._receive_all(), self._speak_all(), self._wait_over())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        error = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
        if not isinstance(error, _ClientGone):
            await self.refuse(error or self._reason)

    def drain(self) -> None:
        """End once nothing is asked for any more."""
        self._draining = True
        if not self._n_jobs:
            self._over.set()

    def end(self, reason: ServerError) -> None:
        """End now, telling the client why."""
        self._reason = reason
        self._over.set()

    async def refuse(self, error: Exception | None) -> None:
        """Take leave of the client, with an `error` event unless nothing is wrong."""
        with suppress(_ClientGone, OSError, RuntimeError):
            if error is not None:
                _log_error(error)
                await self._send(error_event(error))
            if not self._reader.at_eof():
                await within(self._take_leave(), _FAREWELL_S)
            self._writer.close()
            await within(self._writer.wait_closed(), self._settings.send_timeout_s)

    async def _take_leave(self) -> None:
        """Half-close, and read until the client has closed.

        To close while unread bytes lie here would reset the connection, and the client could lose
        what it has not read yet: the error above all.
        """
        self._writer.write_eof()
        while await self._reader.read(_READ_BYTES):
            pass

    async def _wait_over(self) -> None:
        await self._over.wait()

    # What the client says.

    async def _receive_all(self) -> None:
        decoder = EventDecoder(self._settings.max_message_bytes)
        while data := await self._read():
            decoder.feed(data)
            while (event := decoder.next_event()) is not None:
                self._active_at = self._loop.time()
                await self._handle(event)
                await asyncio.sleep(0)  # thousands of events may have come at once
        raise _ClientGone

    async def _read(self) -> bytes:
        """What came from the client; b"" when it has closed its side.

        Raises IdleTimeout when nothing came for too long while nothing was spoken.
        """
        reading = asyncio.create_task(self._reader.read(_READ_BYTES))
        try:
            while not reading.done():
                left = self._active_at + self._settings.idle_timeout_s - self._loop.time()
                if left <= 0 and not self._speaking:
                    raise IdleTimeout("the connection was idle for too long")
                await asyncio.wait({reading}, timeout=max(left, 0.05))
            return reading.result()
        except OSError as error:
            raise _ClientGone from error
        finally:
            reading.cancel()

    async def _handle(self, event: Event) -> None:
        kind = event.type
        if Describe.is_type(kind):
            await self._send(info_event(await self._service.description(_LOADING_WAIT_S)))
        elif Ping.is_type(kind):
            await self._send(Pong(text=read_data(event, PingData).text).event())
        elif Synthesize.is_type(kind):
            if self._live is None:
                asked = read_data(event, SynthesizeData)
                self._add(_Job(asked, asked.text))
        elif SynthesizeStart.is_type(kind):
            if self._live is not None:
                raise InvalidRequest("synthesize-start again: expected synthesize-stop before it")
            live = Writing(self._settings.max_text_chars)
            self._add(_Job(read_data(event, StartData), live))
            self._live = live
        elif SynthesizeChunk.is_type(kind):
            self._open_text(kind).push(read_data(event, TextData).text)
        elif SynthesizeStop.is_type(kind):
            self._open_text(kind).finish()
            self._live = None
        else:
            logger.debug("a Wyoming event of type %s is passed over", ascii(kind)[:60])

    def _open_text(self, kind: str) -> Writing:
        if self._live is None:
            raise InvalidRequest(f"{kind} without synthesize-start before it")
        return self._live

    def _add(self, job: _Job) -> None:
        if self._draining:
            raise ShuttingDown("the server is shutting down")
        if self._jobs.qsize() >= _MAX_WAITING:
            raise Busy(f"{_MAX_WAITING} requests of this connection are waiting already")
        self._n_jobs += 1
        self._jobs.put_nowait(job)

    # What is said to the client.

    async def _speak_all(self) -> None:
        while not (self._draining and self._n_jobs == 0):
            await self._speak(await self._jobs.get())
            self._n_jobs -= 1

    async def _speak(self, job: _Job) -> None:
        text = job.text
        info = self._service.info
        options = speech_options(job.asked, info)
        if isinstance(text, str):
            request = options.request(text, self._settings)
            with self._busy():
                async with self._service.speak(request, door="wyoming") as utterance:
                    await self._send_audio(utterance, info.sample_rate)
            return
        request = options.request("", self._settings)
        self._service.check(request, live=True)  # an unknown voice need not wait for text
        if await text.visible():  # a slot is not taken before there is something to say
            with self._busy():
                async with self._service.speak(request, door="wyoming", live=True) as utterance:
                    text.attach(utterance)
                    await self._send_audio(utterance, info.sample_rate)
        await text.complete.wait()  # speech that was cut may be over before its text
        await self._send(SynthesizeStopped().event())

    async def _send_audio(self, utterance: Utterance, rate: int) -> None:
        """An utterance from `audio-start` to `audio-stop`."""
        start = AudioStart(rate=rate, width=_WIDTH, channels=_CHANNELS).event()
        started = False
        async for pcm in utterance:
            if not started:
                await self._send(start)
                started = True
            for at in range(0, len(pcm), _CHUNK_BYTES):
                part = pcm[at : at + _CHUNK_BYTES]
                await self._send(AudioChunk(rate, _WIDTH, _CHANNELS, part).event())
        if not started:
            await self._send(start)
        await self._send(AudioStop().event())

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Silence of the client is no idleness meanwhile."""
        self._speaking = True
        try:
            yield
        finally:
            self._speaking = False
            self._active_at = self._loop.time()

    async def _send(self, event: Event) -> None:
        async with self._sending:
            try:
                with watchdog(self._settings.send_timeout_s, self._give_up):
                    await async_write_event(event, self._writer)
            except (OSError, RuntimeError) as error:  # RuntimeError: uvloop, already closed
                raise _ClientGone from error

    def _give_up(self) -> None:
        logger.warning(
            "a Wyoming client took no data for %.0f s; connection dropped",
            self._settings.send_timeout_s,
        )
        self._writer.transport.abort()


def _log_error(error: Exception) -> None:
    if isinstance(error, ServerError):
        logger.info("a Wyoming connection ends with an error: %s", type(error).__name__)
    else:
        logger.error("a Wyoming connection failed: %s", error, exc_info=error)
