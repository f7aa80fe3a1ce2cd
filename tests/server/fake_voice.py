"""A voice for tests: a sine, with every delay and fault at the test's command."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from kazeia_server.voices.backend import (
    AudioChunk,
    BackendInfo,
    Ended,
    SynthesisStats,
    VoiceRequest,
)

RATE = 24_000
FRAME = 1920


_StreamT = TypeVar("_StreamT", bound="FakeStream")


@dataclass
class FakeVoice:
    """Speaks `n_chunks` chunks of one frame each; None: never ends by itself."""

    n_chunks: int | None = 3
    delay_s: float = 0.0  # before each chunk
    fail_at: int | None = None  # raise `error` in place of this chunk
    error: Exception = field(default_factory=lambda: RuntimeError("the voice broke"))
    fail_open: Exception | None = None
    deaf: bool = False  # does not react to cancel while `gate` is closed
    voices: tuple[str, ...] = ("anna", "Bert")
    gate: threading.Event | None = None  # reads wait for it
    live: bool = True  # takes text while it speaks

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: list[VoiceRequest] = []
        self.streams: list[FakeStream] = []
        self.open_now = 0
        self.most_open = 0
        self.closed = False
        self.info = BackendInfo(
            name="fake",
            source="qwen3-tts",
            kind="custom_voice",
            voices=self.voices,
            default_voice=self.voices[0] if self.voices else None,
            languages=("english", "french"),
            sample_rate=RATE,
            samples_per_frame=FRAME,
            default_max_frames=2048,
            follows_instructions=True,
            takes_live_text=self.live,
        )

    @property
    def texts(self) -> list[str]:
        """The text of every stream so far."""
        return [getattr(stream, "text", stream.request.text) for stream in self.streams]

    def open(self, request: VoiceRequest) -> FakeStream:
        return self._opened(FakeStream(self, request))

    def open_live(self, request: VoiceRequest) -> FakeLiveStream:
        return self._opened(FakeLiveStream(self, request))

    def _opened(self, stream: _StreamT) -> _StreamT:
        if self.fail_open is not None:
            raise self.fail_open
        with self.lock:
            self.requests.append(stream.request)
            self.streams.append(stream)
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
        return stream

    def close(self) -> None:
        self.closed = True
        for stream in self.streams:
            stream.cancel()


class FakeStream:
    def __init__(self, voice: FakeVoice, request: VoiceRequest) -> None:
        self.voice = voice
        self.request = request
        self.cancelled = threading.Event()
        self.made = 0
        self.ended: Ended | None = None
        self.is_open = True
        self.closed_at = 0.0

    def read(self) -> AudioChunk | None:
        while self.voice.gate is not None and not self.voice.gate.wait(0.005):
            if self.cancelled.is_set() and not self.voice.deaf:
                break
        if self.voice.delay_s:
            self.cancelled.wait(self.voice.delay_s)
        if self.cancelled.is_set():
            self.ended = "cancelled"
            return None
        if self.made == self.voice.fail_at:
            raise self.voice.error
        if self.over():
            self.ended = "eos"
            return None
        chunk = AudioChunk(self.samples(self.made))
        self.made += 1
        return chunk

    def over(self) -> bool:
        return self.voice.n_chunks is not None and self.made >= self.voice.n_chunks

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.closed_at = time.perf_counter()
            with self.voice.lock:
                self.voice.open_now -= 1

    @property
    def stats(self) -> SynthesisStats:
        assert self.ended is not None
        return SynthesisStats(
            ended=self.ended,
            audio_s=self.made * FRAME / RATE,
            frames=self.made,
            n_chunks=self.made,
            ttfb_s=0.01 if self.made else None,
            rtf=0.5 if self.made else None,
            stages={"talker": 0.1},
        )

    def samples(self, index: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Chunk `index`: its own frequency, so that order can be checked."""
        t = np.arange(FRAME, dtype=np.float32) / RATE
        return np.sin(2 * np.pi * (200 + 10 * index) * t).astype(np.float32) * np.float32(0.5)


class FakeLiveStream(FakeStream):
    """Speaks a chunk for every word pushed, the rest of its chunks once the text is complete."""

    def __init__(self, voice: FakeVoice, request: VoiceRequest) -> None:
        super().__init__(voice, request)
        self.text = ""
        self.finished = False
        self.changed = threading.Condition()

    def push_text(self, text: str) -> None:
        with self.changed:
            assert not self.finished
            self.text += text
            self.changed.notify_all()

    def settle_text(self) -> None:
        pass

    def finish_text(self) -> None:
        with self.changed:
            self.finished = True
            self.changed.notify_all()

    def read(self) -> AudioChunk | None:
        with self.changed:
            self.changed.wait_for(
                lambda: (
                    self.finished
                    or self.cancelled.is_set()
                    or (not self.over() and self.made < len(self.text.split()))
                )
            )
        return super().read()

    def cancel(self) -> None:
        super().cancel()
        with self.changed:
            self.changed.notify_all()
