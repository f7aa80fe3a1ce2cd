"""A real Wyoming server on a free loopback port, in a thread of the test process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fake_voice import FRAME, FakeVoice
from live import until
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, read_event, write_event
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from kazeia_server.doors.wyoming.server import WyomingServer, start_wyoming
from kazeia_server.ops.sessions import SessionLimit
from kazeia_server.settings import Settings
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.voices.backend import BackendInfo, SynthesisBackend

T = TypeVar("T")

FRAME_BYTES = 2 * FRAME
START = SynthesizeStart().event()
STOP = SynthesizeStop().event()


class LiveWyoming:
    """A running server; `call` runs something in its event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, server: WyomingServer, service: SynthesisService
    ) -> None:
        self.loop = loop
        self.server = server
        self.service = service
        self.port = server.port

    def call(self, work: Coroutine[Any, Any, T], timeout: float = 20.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def client(self) -> AsyncTcpClient:
        """The library's client."""
        return AsyncTcpClient("127.0.0.1", self.port, connect_timeout=10, read_timeout=10)

    def connect(self) -> RawClient:
        """A blocking client that may misbehave."""
        return RawClient(self.port)


class RawClient:
    """A socket that speaks events, or anything else."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.file = self.socket.makefile("rwb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.file.close()
        self.socket.close()

    def send(self, *events: Event) -> None:
        for event in events:
            write_event(event, self.file)

    def receive(self) -> Event | None:
        """The next event; None at the end of the connection."""
        return read_event(self.file)

    def until(self, kind: str) -> Event:
        """The next event of that kind; an error is none that may come before it."""
        while True:
            event = self.receive()
            assert event is not None, f"the connection ended before {kind}"
            if event.type == kind:
                return event
            assert event.type != "error", event.data

    def error(self) -> Error:
        """The error that ends the connection, and its end."""
        error = Error.from_event(self.until("error"))
        assert self.receive() is None
        return error


@dataclass
class Heard:
    """What came of a request, checked on the way."""

    rate: int | None = None
    audio: bytes = b""
    starts: int = 0
    stops: int = 0
    stopped: bool = False
    error: Error | None = None
    lost: bool = False
    chunks: list[int] = field(default_factory=list)

    def take(self, event: Event | None) -> None:
        if event is None:
            self.lost = True
        elif AudioStart.is_type(event.type):
            start = AudioStart.from_event(event)
            assert (start.width, start.channels) == (2, 1)
            assert self.starts == self.stops, "audio-start inside audio"
            assert self.rate in (None, start.rate)
            self.rate = start.rate
            self.starts += 1
        elif AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            assert self.starts == self.stops + 1, "audio outside audio-start and audio-stop"
            assert (chunk.rate, chunk.width, chunk.channels) == (self.rate, 2, 1)
            assert chunk.audio
            assert len(chunk.audio) % 2 == 0
            self.audio += chunk.audio
            self.chunks.append(len(chunk.audio))
        elif AudioStop.is_type(event.type):
            assert self.starts == self.stops + 1
            self.stops += 1
        elif SynthesizeStopped.is_type(event.type):
            assert self.starts == self.stops
            self.stopped = True
        elif Error.is_type(event.type):
            self.error = Error.from_event(event)
        else:
            raise AssertionError(event)


@contextmanager
def serving_wyoming(
    voice: SynthesisBackend | None = None,
    load: Callable[[Settings], SynthesisBackend] | None = None,
    ready: bool = True,
    describe: Callable[[Settings], BackendInfo] | None = None,
    **settings: Any,
) -> Iterator[LiveWyoming]:
    """Serve `voice`, or what `load` makes; `ready`: wait until it can be spoken with."""
    chosen = Settings(wyoming_port=0, **settings)
    if load is None:
        assert voice is not None

        def load(_: Settings) -> SynthesisBackend:
            return voice

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="wyoming")
    thread.start()

    def call(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def start() -> tuple[SynthesisService, WyomingServer]:
        service = SynthesisService(chosen, load, describe)
        service.start()
        sessions = SessionLimit(chosen.max_sessions)
        return service, await start_wyoming(service, chosen, sessions)

    async def stop() -> None:
        await server.close(0)
        await service.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    held = (voice.gate, voice.n_chunks) if isinstance(voice, FakeVoice) else None
    try:
        if isinstance(voice, FakeVoice):  # the warm-up passes
            voice.gate, voice.n_chunks = None, 1
        service, server = call(start())
        if ready:
            until(lambda: service.state != "loading", 30)
        if isinstance(voice, FakeVoice) and held is not None:
            voice.gate, voice.n_chunks = held
            voice.requests.clear()
            voice.streams.clear()
        try:
            yield LiveWyoming(loop, server, service)
        finally:
            call(stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def synthesize(text: str = "Hello.", **voice: str) -> Event:
    return Synthesize(text=text, voice=SynthesizeVoice(**voice) if voice else None).event()


def chunk(text: str) -> Event:
    return SynthesizeChunk(text=text).event()


def listen(client: RawClient, *, stopped: bool = False) -> Heard:
    """What comes up to `audio-stop` or `synthesize-stopped`, or the end of the connection."""
    heard = Heard()
    while not (heard.lost or heard.stopped or (heard.stops and not stopped)):
        heard.take(client.receive())
    return heard


def say(live: LiveWyoming, text: str = "Hello.") -> bytes:
    with live.connect() as client:
        client.send(synthesize(text))
        heard = listen(client)
    assert (heard.starts, heard.stops, heard.error) == (1, 1, None)
    return heard.audio


def spoken(voice: FakeVoice) -> list[str]:
    """What the voice was given to speak, piece by piece."""
    texts = [getattr(stream, "text", stream.request.text) for stream in voice.streams]
    return [text.strip() for text in texts]


def at_rest(live: LiveWyoming, voice: FakeVoice) -> bool:
    return live.service.running == 0 and live.service.waiting == 0 and voice.open_now == 0
