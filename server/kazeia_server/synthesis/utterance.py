"""One utterance between the thread that makes it and the event loop that sends it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from kazeia_server.errors import EngineFailure, ServerError, ShuttingDown, TextTooLong
from kazeia_server.logging_ import logger
from kazeia_server.settings import Settings
from kazeia_server.synthesis.pieces import LiveText, TextFront, WholeText
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.synthesis.speaker import Speaker
from kazeia_server.voices.backend import SynthesisBackend, SynthesisStats

__all__ = ["Listener", "Utterance"]

_CHUNKS_ON_THE_WAY = 8


class Utterance:
    """An utterance being made: an async iterator of bytes in the request's output format.

    Raises the ServerError with which synthesis failed.  `stats` is there after the last bytes.
    A thread of its own reads the (blocking) voice.  The chunks on the way are bounded: when the
    client does not take them the thread waits, and with it only this utterance.
    """

    def __init__(
        self,
        backend: SynthesisBackend,
        request: SynthesisRequest,
        settings: Settings,
        on_thread_end: Callable[[Utterance], None],
        *,
        live: bool = False,
        hold: bool = False,
    ) -> None:
        """`live`: the text comes by push_text.  `hold`: no bytes are wanted before the end."""
        self.request = request
        self.stats: SynthesisStats | None = None
        self.figures: SynthesisStats | None = None  # of what was made, read or not
        self.failure: ServerError | None = None
        self.characters = len(request.text)
        self._max_chars = settings.max_text_chars
        self._flushed = True  # no text since the last flush
        self._complete = not live
        self._hold = hold
        info = backend.info
        speaks_at_once = live and info.takes_live_text
        front = TextFront(
            info,
            clean=request.clean,
            split=request.split,
            language=request.language,
            live=speaks_at_once,
        )
        self._text = LiveText(front, settings.text_timeout_s) if live else None
        self._speaker = Speaker(
            backend,
            request,
            self._text or WholeText(request.text, front),
            settings,
            live=live,
            hold=hold,
        )
        self._on_thread_end = on_thread_end
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[bytes | SynthesisStats | ServerError] = asyncio.Queue()
        self._room = threading.Semaphore(_CHUNKS_ON_THE_WAY)
        self._cancelled = False
        self._closed = asyncio.Event()
        self.listener = Listener(info.sample_rate)
        # A daemon: a voice that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._pump, name="utterance", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads
            self._speaker.cancel()
            raise

    def __aiter__(self) -> Utterance:
        return self

    async def __anext__(self) -> bytes:
        if self.failure is not None:
            raise self.failure
        if self.stats is not None:
            raise StopAsyncIteration
        item = await self._arrived.get()
        if isinstance(item, bytes):
            self._room.release()
            return item
        if isinstance(item, SynthesisStats):
            self.stats = item
            if item.ended != "cancelled":
                raise StopAsyncIteration
            # Who reads on did not cancel it: what was heard must not pass for all of it.
            item = ShuttingDown("the server is shutting down")
        self.failure = item
        raise item

    @property
    def audio_s(self) -> float:
        """Seconds of audio made so far."""
        return self._speaker.audio_s

    def push_text(self, text: str) -> None:
        """Append to a live text, as it is; never blocks.

        Raises TextTooLong beyond the limit of the settings; nothing is appended then.
        """
        if self.characters + len(text) > self._max_chars:
            raise TextTooLong(
                f"the utterance has {self.characters + len(text)} characters; "
                f"at most {self._max_chars} are accepted",
                param="text",
            )
        if not text:
            return
        self.characters += len(text)
        self._flushed = False
        self._live_text().push(text)

    def flush_text(self) -> None:
        """Speak all text there is; what follows begins a new piece."""
        if self._flushed:
            return
        self._flushed = True
        self._live_text().flush()

    def finish_text(self) -> None:
        """The live text is complete: the utterance ends after it."""
        self._complete = True
        self._live_text().finish()

    def cancel(self) -> None:
        """Stop generation soon; callable from any thread, any number of times."""
        self._cancelled = True
        self._speaker.cancel()
        self._room.release()  # the thread may be waiting for room

    async def wait_closed(self) -> None:
        """Return once the thread has let go of the voice."""
        await self._closed.wait()

    def abandon(self) -> None:
        """Let `wait_closed` return although the thread hangs; only when the process ends."""
        self._closed.set()

    def _live_text(self) -> LiveText:
        if self._text is None:
            raise RuntimeError("the text of this utterance was given as a whole")
        return self._text

    def _pump(self) -> None:
        """The thread: make the utterance to its end."""
        failure: ServerError | None = None
        try:
            for data in self._speaker:
                self._count_underruns()
                if not self._cancelled and not self._room.acquire(blocking=False):
                    began = time.perf_counter()
                    self._room.acquire()
                    self.listener.paused(time.perf_counter() - began)
                if not self._cancelled:
                    self._post(self._arrived.put_nowait, data)
        except ServerError as error:
            failure = error
        except Exception:
            logger.exception("synthesis failed")
            failure = EngineFailure("synthesis failed; the server's log has the details")
        self.figures = self._speaker.stats
        if self._text is not None:
            self._text.cancel()  # its thread ends with the utterance
        self._post(self._arrived.put_nowait, failure or self.figures)
        self._post(self._finish)

    def _count_underruns(self) -> None:
        """Nobody listens to what is held; and before all text is known, its writer may be late."""
        if not self._hold:
            self.listener.hear(self._speaker.audio_s, waiting=not self._complete)

    def _post(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody is waiting any more
            self._cancelled = True

    def _finish(self) -> None:
        self._closed.set()
        self._on_thread_end(self)


class Listener:
    """Somebody who plays audio as it is made, from its first sound on."""

    def __init__(self, sample_rate: int) -> None:
        self._tolerance_s = 1.0 / sample_rate
        self._ends_at: float | None = None
        self._heard_s = 0.0
        self.underruns = 0  # times nothing was there to play
        self.underrun_s = 0.0

    def hear(self, audio_s: float, *, waiting: bool) -> None:
        """`audio_s` seconds have been made by now; `waiting`: a gap may be the writer's."""
        now = time.perf_counter()
        if self._ends_at is None:
            self._ends_at = now
        elif now > self._ends_at + self._tolerance_s:
            if not waiting:
                self.underruns += 1
                self.underrun_s += now - self._ends_at
            self._ends_at = now
        self._ends_at += audio_s - self._heard_s
        self._heard_s = audio_s

    def paused(self, seconds: float) -> None:
        """The client did not take more for so long, because it had enough."""
        if self._ends_at is not None:
            self._ends_at += seconds
