"""The synthesis service: the one place where utterances are admitted, opened and cancelled.

Each utterance has a thread of its own that reads the (blocking) voice and hands chunks to the
event loop.  The number of chunks on the way is bounded: when the client does not take them the
thread waits, and with it only this utterance.  Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, TypeVar

from kazeia_server.audio import pcm16
from kazeia_server.backend import (
    BackendInfo,
    SynthesisBackend,
    SynthesisRequest,
    SynthesisStats,
    SynthesisStream,
)
from kazeia_server.errors import (
    Busy,
    EngineFailure,
    InvalidRequest,
    NotReady,
    ServerError,
    ShuttingDown,
    VoiceLoadError,
)
from kazeia_server.logging_ import logger
from kazeia_server.requests import check_request
from kazeia_server.settings import Settings

__all__ = ["ServiceState", "SynthesisService", "Utterance", "load_voice"]

ServiceState = Literal["loading", "ready", "failed", "closing"]
_T = TypeVar("_T")

_CHUNKS_ON_THE_WAY = 8
_CLOSE_DEADLINE_S = 5.0
_WARM_UP = SynthesisRequest(text="Ready.", max_frames=2, chunk=1)


def load_voice(settings: Settings) -> SynthesisBackend:
    """The voice the settings ask for: a Qwen3-TTS model, or else the built-in one.

    Blocks for as long as loading takes.  Raises VoiceLoadError.
    """
    if settings.model is not None:
        from kazeia_server.engine import load_model

        return load_model(settings.model, threads=settings.threads, cp_cache=settings.cp_cache)
    from kazeia_server.builtin_voice import BuiltinVoice

    return BuiltinVoice()


class Utterance:
    """One utterance being made: an async iterator of PCM, 16-bit little-endian, in order.

    Raises the ServerError with which synthesis failed.  `stats` is there after the last chunk.
    """

    def __init__(
        self,
        backend: SynthesisBackend,
        request: SynthesisRequest,
        on_thread_end: Callable[[Utterance], None],
    ) -> None:
        self.request = request
        self.stats: SynthesisStats | None = None
        self._backend = backend
        self._on_thread_end = on_thread_end
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[bytes | SynthesisStats | ServerError] = asyncio.Queue()
        self._room = threading.Semaphore(_CHUNKS_ON_THE_WAY)
        self._lock = threading.Lock()
        self._stream: SynthesisStream | None = None
        self._cancelled = False
        self._failure: ServerError | None = None
        self._closed = asyncio.Event()
        # A daemon: a voice that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._pump, name="utterance", daemon=True)
        self._thread.start()

    def __aiter__(self) -> Utterance:
        return self

    async def __anext__(self) -> bytes:
        if self.stats is not None:
            raise StopAsyncIteration
        if self._failure is not None:
            raise self._failure
        item = await self._arrived.get()
        if isinstance(item, bytes):
            self._room.release()
            return item
        if isinstance(item, SynthesisStats):
            self.stats = item
            raise StopAsyncIteration
        self._failure = item
        raise item

    def cancel(self) -> None:
        """Stop generation soon; callable from any thread, any number of times."""
        with self._lock:
            self._cancelled = True
            stream = self._stream
        if stream is not None:
            stream.cancel()
        self._room.release()  # the thread may be waiting for room

    async def wait_closed(self) -> None:
        """Return once the thread has let go of the voice."""
        await self._closed.wait()

    def abandon(self) -> None:
        """Let `wait_closed` return although the thread hangs; only when the process ends."""
        self._closed.set()

    def _pump(self) -> None:
        """The thread: read the voice until it ends."""
        outcome: SynthesisStats | ServerError
        try:
            outcome = self._read_all()
        except ServerError as error:
            outcome = error
        except Exception:
            logger.exception("synthesis failed")
            outcome = EngineFailure("synthesis failed; the server's log has the details")
        self._post(self._arrived.put_nowait, outcome)
        self._post(self._finish)

    def _read_all(self) -> SynthesisStats:
        stream = self._backend.open(self.request)
        try:
            with self._lock:
                self._stream = stream
                cancelled = self._cancelled
            if cancelled:
                stream.cancel()
            while (chunk := stream.read()) is not None:
                if not self._cancelled:
                    self._room.acquire()
                if not self._cancelled:
                    self._post(self._arrived.put_nowait, pcm16(chunk.pcm))
            return stream.stats
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _post(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody is waiting any more
            self._cancelled = True

    def _finish(self) -> None:
        self._closed.set()
        self._on_thread_end(self)


class _Slots:
    """First-come-first-served admission with a bounded waiting line."""

    def __init__(self, slots: int, places: int) -> None:
        self._free = slots
        self._places = places
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def acquire(self) -> None:
        """Take a slot, waiting in line for it.

        Raises Busy when the line is full.
        """
        if self._free > 0 and not self._line:
            self._free -= 1
            return
        if len(self._line) >= self._places:
            raise Busy("every slot and every place in the queue is taken: try again later")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # release() or refuse() took it out of the line first
                    self._line.remove(turn)
            else:  # the slot, or the refusal, came at the same moment
                if turn.exception() is None:
                    self.release()
            raise

    def release(self) -> None:
        """Give a slot back; the first in line gets it."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def refuse(self, error: ServerError) -> None:
        """Send everybody in line away with `error`."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_exception(error)


class SynthesisService:
    """Voices for the doors of the server.  Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[Settings], SynthesisBackend] = load_voice,
    ) -> None:
        self.settings = settings
        self.state: ServiceState = "loading"
        self.failure: VoiceLoadError | None = None
        self._load = load
        self._backend: SynthesisBackend | None = None
        self._slots = _Slots(settings.max_concurrent, settings.max_queue)
        self._active: set[Utterance] = set()
        self._loading: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    @property
    def info(self) -> BackendInfo:
        """Facts about the voice.

        Raises NotReady, VoiceLoadError or ShuttingDown when there is none.
        """
        return self._voice().info

    @property
    def running(self) -> int:
        """Utterances that hold a slot."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Utterances in line for a slot."""
        return self._slots.waiting

    def start(self) -> None:
        """Begin loading the voice; returns at once."""
        self._loading = asyncio.create_task(self._load_and_warm())

    async def settled(self) -> ServiceState:
        """Wait until loading has ended, in one way or the other."""
        await self._settled.wait()
        return self.state

    def check(self, request: SynthesisRequest) -> SynthesisRequest:
        """The request in the voice's own terms; see check_request."""
        return check_request(request, self.info, self.settings)

    @asynccontextmanager
    async def speak(self, request: SynthesisRequest) -> AsyncIterator[Utterance]:
        """Check, wait for a slot, and make an utterance; leaving the block cancels it.

        The slot is free again when the voice has really let go, before the block is left.
        Raises InvalidRequest, Busy, NotReady, ShuttingDown or VoiceLoadError.
        """
        request = self.check(request)
        await self._slots.acquire()
        try:
            utterance = Utterance(self._voice(), request, self._utterance_ended)
        except BaseException:
            self._slots.release()
            raise
        self._active.add(utterance)
        begun = time.perf_counter()
        try:
            yield utterance
        finally:
            utterance.cancel()
            await _uninterrupted(utterance.wait_closed())
            _log_outcome(utterance, time.perf_counter() - begun)

    async def close(self) -> None:
        """Refuse what waits, cancel what runs, free the voice.  Bounded in time."""
        self.state = "closing"
        self._settled.set()
        self._slots.refuse(ShuttingDown("the server is shutting down"))
        if self._loading is not None:
            self._loading.cancel()
            with suppress(asyncio.CancelledError):
                await self._loading
        active = list(self._active)
        for utterance in active:
            utterance.cancel()
        if active:
            waits = [asyncio.ensure_future(utterance.wait_closed()) for utterance in active]
            _, late = await asyncio.wait(waits, timeout=_CLOSE_DEADLINE_S)
            if late:
                logger.warning("%d utterances did not stop in time", len(late))
            for utterance in active:
                utterance.abandon()
            await asyncio.wait(waits)
        backend, self._backend = self._backend, None
        if backend is not None:
            closing = asyncio.ensure_future(_in_thread(backend.close))
            await asyncio.wait([closing], timeout=_CLOSE_DEADLINE_S)

    def _voice(self) -> SynthesisBackend:
        if self.state == "loading":
            raise NotReady("the voice is still being loaded", retry_after_s=2)
        if self.state == "closing":
            raise ShuttingDown("the server is shutting down")
        if self._backend is None:
            raise self.failure or VoiceLoadError("the voice could not be loaded")
        return self._backend

    def _utterance_ended(self, utterance: Utterance) -> None:
        self._active.discard(utterance)
        self._slots.release()

    async def _load_and_warm(self) -> None:
        begun = time.perf_counter()
        try:
            self._backend = await _in_thread(lambda: _warmed(self._load(self.settings)))
        except VoiceLoadError as error:
            self.failure = error
        except Exception as error:
            logger.exception("loading the voice failed")
            self.failure = VoiceLoadError(f"loading the voice failed: {error}")
        if self.failure is not None:
            self.state = "failed"
            logger.error("no voice: %s", self.failure)
        elif self._backend is not None:
            self.state = "ready"
            seconds = time.perf_counter() - begun
            logger.info("%s ready after %.1f s", self._backend.info.description, seconds)
        self._settled.set()


def _warmed(backend: SynthesisBackend) -> SynthesisBackend:
    """Speak a word once, so that the first client does not pay for first use."""
    try:
        stream = backend.open(replace(_WARM_UP, voice=backend.info.default_voice))
    except InvalidRequest as error:  # such as a model that only speaks with a reference voice
        logger.warning("no warm-up: %s", error)
        return backend
    try:
        while stream.read() is not None:
            pass
    finally:
        stream.close()
    return backend


def _log_outcome(utterance: Utterance, seconds: float) -> None:
    stats = utterance.stats
    logger.info(
        "utterance: %d characters, voice %s, %s, %.2f s audio, first sound %s, rtf %s, %.2f s",
        len(utterance.request.text),
        utterance.request.voice,
        stats.ended if stats else "not finished",
        stats.audio_s if stats else 0.0,
        f"{stats.ttfb_s:.3f} s" if stats and stats.ttfb_s is not None else "-",
        f"{stats.rtf:.3f}" if stats and stats.rtf is not None else "-",
        seconds,
    )


async def _in_thread(function: Callable[[], _T]) -> _T:
    """Run `function` in a daemon thread of its own, which a shutdown need not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(set_outcome: Callable[..., None], outcome: object) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        outcome: object
        set_outcome: Callable[..., None] = future.set_result
        try:
            outcome = function()
        except Exception as error:
            outcome, set_outcome = error, future.set_exception
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    threading.Thread(target=run, name="kazeia-work", daemon=True).start()
    return await future


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Await to the end even when this task is cancelled meanwhile; then raise the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
