"""One utterance from text to bytes, in the order the listener hears it.

Piece after piece of the text goes to the voice; what comes back is freed of leading silence,
joined with pauses, retried where a guard cut it before anything was heard, and encoded.  Runs in
the utterance's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from kazeia_server.audio.encode import Encoder, open_encoder
from kazeia_server.audio.pcm import Samples
from kazeia_server.errors import ServerError
from kazeia_server.logging_ import logger
from kazeia_server.settings import Settings
from kazeia_server.synthesis.joint import Joint
from kazeia_server.synthesis.pieces import Piece, PieceSource
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.text.pieces import Pause
from kazeia_server.voices.backend import (
    Ended,
    SynthesisBackend,
    SynthesisStats,
    SynthesisStream,
)

__all__ = ["Speaker"]

_EMPTY_S = 0.2  # what is heard of a text in which nothing can be spoken
_GUARDED: frozenset[Ended] = frozenset(("runaway", "silence", "repetition"))
_MAX_SEED = 2**63
_NO_LIMIT = 2**63


@dataclass
class _Figures:
    """What adds up over the pieces."""

    pieces: int = 0
    retries: int = 0
    frames: int = 0
    n_chunks: int = 0
    work_s: float = 0.0
    samples: int = 0
    ended: Ended = "eos"
    voice_ttfb_s: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def discard(self, stats: SynthesisStats) -> None:
        """A try of which nothing is heard: its work was done all the same."""
        self.retries += 1
        self._work(stats)

    def _work(self, stats: SynthesisStats) -> None:
        self.work_s += (stats.rtf or 0.0) * stats.audio_s
        for name, seconds in stats.stages.items():
            self.stages[name] = self.stages.get(name, 0.0) + seconds

    def add(self, stats: SynthesisStats) -> None:
        """A try that is heard."""
        if self.voice_ttfb_s is None:
            self.voice_ttfb_s = stats.ttfb_s
        self.frames += stats.frames
        self._work(stats)
        self.warnings += [w for w in stats.warnings if w not in self.warnings]


class Speaker:
    """Makes the bytes of one utterance; iterate once.  `cancel` may be called from any thread.

    `hold`: the listener gets nothing before the end, so that every piece may be tried again.
    """

    def __init__(
        self,
        backend: SynthesisBackend,
        request: SynthesisRequest,
        source: PieceSource,
        settings: Settings,
        *,
        live: bool,
        hold: bool,
    ) -> None:
        self._backend = backend
        self._info = backend.info
        self._request = request
        self._source = source
        self._settings = settings
        self._live = live and self._info.takes_live_text
        self._hold = hold
        # A seed matters, unless a request says otherwise: voices draw.
        self._draws = request.temperature != 0 or request.cp_temperature != 0
        self._lock = threading.Lock()
        self._stream: SynthesisStream | None = None
        self._cancelled = False
        self._begun: float | None = None
        self._ttfb_s: float | None = None
        self._figures = _Figures()
        self._joint = Joint(self._info.sample_rate, trim=settings.trim_silence)

    def cancel(self) -> None:
        """Stop soon: within a frame of the engine."""
        with self._lock:
            self._cancelled = True
            stream = self._stream
        self._source.cancel()
        if stream is not None:
            stream.cancel()

    def __iter__(self) -> Iterator[bytes]:
        encoder = open_encoder(self._request.output, self._info.sample_rate, self._request.speed)
        pause: Pause = "none"
        while (piece := self._source.next()) is not None and not self._cancelled:
            self._begun = self._begun or time.perf_counter()
            if self._figures.frames >= (self._request.max_frames or _NO_LIMIT):
                self._figures.ended = "max_frames"
                break
            if self._figures.pieces:
                yield from self._encoded(encoder, self._joint.pause(self._seconds(pause)))
            self._figures.pieces += 1
            for samples in self._piece(piece):
                yield from self._encoded(encoder, samples)
            pause = piece.pause
            if self._figures.ended in ("max_frames", "cancelled"):
                break
        if not self._figures.pieces and not self._cancelled:
            self._figures.ended = "empty"
            silence = np.zeros(round(_EMPTY_S * self._info.sample_rate), np.float32)
            yield from self._encoded(encoder, silence)
        if self._figures.pieces and not self._figures.samples and not self._cancelled:
            self._figures.warnings.append("the speech held nothing but silence")
        if not self._cancelled:
            data = encoder.finish()
            if data:
                yield data

    @property
    def audio_s(self) -> float:
        """Seconds made so far, at the listener's speed."""
        return self._figures.samples / self._info.sample_rate / self._request.speed

    @property
    def stats(self) -> SynthesisStats:
        """Figures of the utterance, once it has ended."""
        figures = self._figures
        return SynthesisStats(
            ended="cancelled" if self._cancelled else figures.ended,
            audio_s=self.audio_s,
            frames=figures.frames,
            n_chunks=figures.n_chunks,
            ttfb_s=self._ttfb_s,
            rtf=figures.work_s / self.audio_s if figures.samples and figures.pieces else None,
            stages=figures.stages,
            warnings=tuple(figures.warnings),
            pieces=figures.pieces,
            retries=figures.retries,
            voice_ttfb_s=figures.voice_ttfb_s,
        )

    def _encoded(self, encoder: Encoder, samples: Samples) -> Iterator[bytes]:
        if not len(samples) or self._cancelled:
            return
        self._figures.samples += len(samples)
        data = encoder.feed(samples)
        if data:
            if self._ttfb_s is None:
                self._ttfb_s = time.perf_counter() - self._begun if self._begun else 0.0
            self._figures.n_chunks += 1
            yield data

    def _piece(self, piece: Piece) -> Iterator[Samples]:
        """The audio of a piece; made again with another seed while a guard cuts it unheard."""
        for attempt in range(self._settings.guard_retries + 1):
            held: list[Samples] = []
            heard = False
            stats: SynthesisStats | None = None
            for item in self._attempt(piece, attempt):
                if isinstance(item, SynthesisStats):
                    stats = item
                elif self._hold:
                    held.append(item)
                else:
                    heard = True
                    yield item
            if stats is None:
                return
            again = stats.ended in _GUARDED and not heard and attempt < self._settings.guard_retries
            if again and self._draws and not self._cancelled:
                self._figures.discard(stats)
                self._joint.rewind()
                logger.warning("a piece ended by its guard (%s); another seed", stats.ended)
                continue
            self._conclude(stats)
            yield from held
            return

    def _conclude(self, stats: SynthesisStats) -> None:
        self._figures.add(stats)
        if self._figures.ended == "eos" or stats.ended in ("max_frames", "cancelled"):
            self._figures.ended = stats.ended

    def _attempt(self, piece: Piece, attempt: int) -> Iterator[Samples | SynthesisStats]:
        """The audio of one try, and at its end its figures; nothing once cancelled."""
        self._joint.begin(first=self._figures.pieces == 1)
        stream = self._open(piece, attempt)
        try:
            with self._lock:
                self._stream = stream
                cancelled = self._cancelled
            if cancelled:
                stream.cancel()
            while (chunk := stream.read()) is not None:
                if self._cancelled:
                    continue
                samples = self._joint.feed(chunk.pcm)
                if len(samples):
                    yield samples
            if self._cancelled:
                with suppress(ServerError):  # of a stream that had not begun there are none
                    self._figures.add(stream.stats)
                return
            yield stream.stats
        finally:
            piece.detach()
            with self._lock:
                self._stream = None
            stream.close()

    def _open(self, piece: Piece, attempt: int) -> SynthesisStream:
        request = replace(self._request, seed=(self._request.seed + attempt) % _MAX_SEED)
        if request.max_frames is not None:
            left = max(1, request.max_frames - self._figures.frames)
            longest = self._info.default_max_frames
            request = replace(request, max_frames=min(left, longest) if longest else left)
        if not self._live:
            return self._backend.open(replace(request, text=piece.complete()))
        stream = self._backend.open_live(replace(request, text=""))
        try:
            piece.attach(stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def _seconds(self, pause: Pause) -> float:
        if pause == "none":
            return 0.0
        if pause == "paragraph":
            return self._settings.paragraph_pause_s
        return self._settings.sentence_pause_s
