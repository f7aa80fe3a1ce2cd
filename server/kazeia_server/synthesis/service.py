"""The synthesis service: the one place where utterances are admitted, opened and cancelled.

Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal, TypeVar

from kazeia_server.errors import (
    InvalidRequest,
    NotReady,
    ServerError,
    ShuttingDown,
    VoiceLoadError,
    face_of,
)
from kazeia_server.logging_ import logger
from kazeia_server.settings import Settings
from kazeia_server.synthesis.check import check_request
from kazeia_server.synthesis.report import Outcome, UtteranceReport
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.synthesis.slots import Slots
from kazeia_server.synthesis.utterance import Utterance
from kazeia_server.voices.backend import BackendInfo, SynthesisBackend, VoiceRequest, VoiceSource
from kazeia_server.waiting import within

__all__ = ["ServiceState", "SynthesisService"]

ServiceState = Literal["loading", "ready", "failed", "draining", "closing"]
_T = TypeVar("_T")

_CLOSE_DEADLINE_S = 5.0
_WARM_UP = VoiceRequest(text="Ready.", max_frames=2, chunk=1)


class SynthesisService:
    """Voices for the doors of the server.  Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[Settings], SynthesisBackend],
        describe: Callable[[Settings], BackendInfo] | None = None,
    ) -> None:
        """`load` makes the voice, `describe` tells sooner what it will be; both may block."""
        self.settings = settings
        self.state: ServiceState = "loading"
        self.failure: VoiceLoadError | None = None
        self._load = load
        self._describe = describe
        self._description: BackendInfo | None = None
        self._described = asyncio.Event()
        self._backend: SynthesisBackend | None = None
        self.observers: list[Callable[[UtteranceReport], None]] = []
        self.draining = asyncio.Event()
        self._slots = Slots(settings.max_concurrent, settings.max_queue)
        self._idle = asyncio.Event()
        self._wanted = 0  # utterances that wait for a slot or hold one
        self._active: set[Utterance] = set()
        self._loading: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._threads: list[threading.Thread] = []  # that load or free the voice

    @property
    def info(self) -> BackendInfo:
        """Facts about the voice; also while draining, for what is still being spoken.

        Raises NotReady, VoiceLoadError or ShuttingDown when there is none.
        """
        return self._voice(admitted=True).info

    @property
    def model(self) -> str | None:
        """The own name of what speaks, or will; None: it is not known yet."""
        info = self._backend.info if self._backend is not None else self._description
        return None if info is None else info.name

    @property
    def source(self) -> VoiceSource:
        """What the settings ask for."""
        return "built-in" if self.settings.model is None else "qwen3-tts"

    async def description(self, patience_s: float) -> BackendInfo:
        """Facts about the voice, maybe before it is loaded; waits for them at most so long.

        Raises what `info` raises.
        """
        await within(self._described.wait(), patience_s)
        return self._description if self._description and self.state == "loading" else self.info

    def accepting(self) -> BackendInfo:
        """Facts about the voice if new utterances are taken now.

        Raises what `info` raises, and ShuttingDown while draining.
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

    def check(self, request: SynthesisRequest, *, live: bool = False) -> SynthesisRequest:
        """The request in the voice's own terms; see check_request."""
        return check_request(request, self.accepting(), self.settings, live=live)

    @asynccontextmanager
    async def speak(
        self,
        request: SynthesisRequest,
        *,
        door: str,
        live: bool = False,
        hold: bool = False,
    ) -> AsyncIterator[Utterance]:
        """Check, wait for a slot, and make an utterance; leaving the block cancels it.

        `door` is the protocol that asks, for the figures.  `live`: the text comes by
        `Utterance.push_text`.  `hold`: the client gets nothing before the end.
        The slot is free again when the voice has really let go, before the block is left.
        Raises InvalidRequest, Busy, NotReady, ShuttingDown or VoiceLoadError.
        """
        asked = time.perf_counter()
        utterance: Utterance | None = None
        granted = asked
        failure: BaseException | None = None
        self._wanted += 1
        try:
            request = self.check(request, live=live)
            await self._slots.acquire()
            granted = time.perf_counter()
            try:
                utterance = Utterance(
                    self._voice(admitted=True),
                    request,
                    self.settings,
                    self._utterance_ended,
                    live=live,
                    hold=hold,
                )
            except BaseException:
                self._slots.release()
                raise
            self._active.add(utterance)
            try:
                yield utterance
            finally:
                utterance.cancel()
                await _uninterrupted(utterance.wait_closed())
        except BaseException as error:
            failure = error
            raise
        finally:
            self._wanted -= 1
            if not self._wanted:
                self._idle.set()
            self._report(door, request, utterance, failure, asked, granted)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new utterances, and wait for the others to end, at most `timeout_s`."""
        if self.state in ("loading", "ready"):
            self.state = "draining"
        self.draining.set()
        self._idle.clear()
        if self._wanted:
            await within(self._idle.wait(), timeout_s)

    async def close(self) -> None:
        """Refuse what waits, cancel what runs, free the voice.  Bounded in time."""
        self.state = "closing"
        self.draining.set()
        self._described.set()
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
            closing = asyncio.ensure_future(self._in_thread(backend.close))
            await asyncio.wait([closing], timeout=_CLOSE_DEADLINE_S)

    def join(self, timeout_s: float) -> None:
        """Wait for work that close() left behind, at most so long.

        A process that ends while a thread is inside a library may be aborted by it.
        """
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _voice(self, *, admitted: bool = False) -> SynthesisBackend:
        if self.state == "loading":
            raise NotReady("the voice is still being loaded", retry_after_s=2)
        speaks_on = admitted and self._backend is not None
        if self.state == "closing" or (self.state == "draining" and not speaks_on):
            raise ShuttingDown("the server is shutting down")
        if self._backend is None:
            raise self.failure or VoiceLoadError("the voice could not be loaded")
        return self._backend

    def _utterance_ended(self, utterance: Utterance) -> None:
        self._active.discard(utterance)
        self._slots.release()

    def _report(
        self,
        door: str,
        request: SynthesisRequest,
        utterance: Utterance | None,
        failure: BaseException | None,
        asked: float,
        granted: float,
    ) -> None:
        """Tell the log and the observers how an utterance went."""
        now = time.perf_counter()
        stats = utterance.stats if utterance else None
        figures = utterance.figures if utterance else None
        error = failure if isinstance(failure, ServerError) else None
        if error is None and utterance is not None:
            error = utterance.failure  # told to the client without passing through here
        code = face_of(error).code if error else None
        outcome: Outcome
        if error is not None:
            outcome = "error" if utterance else "refused"
        else:  # anything else that ended it is the client's leaving
            outcome = "ok" if stats is not None and stats.ended != "cancelled" else "cancelled"
        report = UtteranceReport(
            door=door,
            outcome=outcome,
            ended="cancelled" if outcome == "cancelled" else stats.ended if stats else None,
            error_code=code,
            characters=utterance.characters if utterance else len(request.text),
            voice=utterance.request.voice if utterance else None,  # else it is any text
            queue_s=granted - asked,
            wall_s=now - granted,
            ttfb_s=figures.ttfb_s if figures else None,
            rtf=figures.rtf if figures else None,
            audio_s=utterance.audio_s if utterance else 0.0,
            underruns=utterance.listener.underruns if utterance else 0,
            underrun_s=utterance.listener.underrun_s if utterance else 0.0,
            retries=figures.retries if figures else 0,
            pieces=figures.pieces if figures else 0,
            stages=figures.stages if figures else {},
        )
        _log(report)
        for observe in self.observers:
            observe(report)

    async def _load_and_warm(self) -> None:
        begun = time.perf_counter()
        if self._describe is not None:
            describe = self._describe
            with suppress(VoiceLoadError):  # loading will say so
                self._description = await self._in_thread(lambda: describe(self.settings))
                self._described.set()
        try:
            self._backend = await self._in_thread(lambda: _warmed(self._load(self.settings)))
        except VoiceLoadError as error:
            self.failure = error
        except Exception as error:
            logger.exception("loading the voice failed")
            self.failure = VoiceLoadError(f"loading the voice failed: {error}")
        if self.failure is not None:
            if self.state == "loading":
                self.state = "failed"
            logger.error("no voice: %s", self.failure)
        elif self._backend is not None:
            if self.state == "loading":
                self.state = "ready"
            seconds = time.perf_counter() - begun
            logger.info("%s ready after %.1f s", self._backend.info.description, seconds)
        self._described.set()
        self._settled.set()

    async def _in_thread(self, function: Callable[[], _T]) -> _T:
        """Run `function` in a daemon thread of its own, which close() does not wait for."""
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

        thread = threading.Thread(target=run, name="kazeia-work", daemon=True)
        self._threads.append(thread)
        thread.start()
        return await future


def _warmed(backend: SynthesisBackend) -> SynthesisBackend:
    """Speak a word once, so that the first client does not pay for first use."""
    import_module("kazeia_server.audio.codec")  # FFmpeg's libraries
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


def _log(report: UtteranceReport) -> None:
    """One line an utterance; never its text."""
    seconds = {
        name: None if value is None else round(value, 3)
        for name, value in (
            ("ttfb_s", report.ttfb_s),
            ("rtf", report.rtf),
            ("audio_s", report.audio_s),
            ("queue_s", report.queue_s),
            ("wall_s", report.wall_s),
        )
    }
    logger.info(
        "utterance %s: %s door, %d characters, voice %s, %s, %s",
        report.outcome,
        report.door,
        report.characters,
        report.voice or "-",
        report.ended or report.error_code or "not finished",
        ", ".join(f"{name} {'-' if value is None else value}" for name, value in seconds.items()),
        extra={
            "door": report.door,
            "outcome": report.outcome,
            "ended": report.ended,
            "error_code": report.error_code,
            "characters": report.characters,
            "voice": report.voice,
            **seconds,
        },
    )


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
