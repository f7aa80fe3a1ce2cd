"""The interface behind which voices stand, and the values that cross it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "AudioChunk",
    "BackendInfo",
    "Ended",
    "LiveStream",
    "SynthesisBackend",
    "SynthesisStats",
    "SynthesisStream",
    "VoiceRequest",
    "VoiceSource",
]

# eos: the voice ended by itself; max_frames: cut at the limit of the request; cancelled;
# runaway, silence, repetition: cut by the guard; empty: nothing in the text can be spoken.
Ended = Literal["eos", "max_frames", "cancelled", "runaway", "silence", "repetition", "empty"]
VoiceSource = Literal["built-in", "qwen3-tts"]


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What a loaded voice source is and can do."""

    name: str
    source: VoiceSource
    kind: str  # "built-in", or the model's: custom_voice, voice_design, base
    voices: tuple[str, ...]  # empty: the voice cannot be chosen by name
    default_voice: str | None
    languages: tuple[str, ...]  # lower-case English names; "auto" is always accepted beside them
    sample_rate: int  # Hz
    samples_per_frame: int
    default_max_frames: int | None  # of a request without; None: speech always ends by itself
    follows_instructions: bool
    reads_symbols: bool = True  # numbers and signs; a voice that does not is given words
    takes_live_text: bool = False  # open_live() works: text may still be coming while it speaks
    first_piece_chars: int = 120  # of a whole text: what its first sound has to wait for

    @property
    def description(self) -> str:
        """One phrase for logs and the command line."""
        if self.source == "built-in":
            return f"built-in voice ({self.name}; no Qwen3-TTS model is configured)"
        return f"Qwen3-TTS model {self.name} ({self.kind})"


@dataclass(frozen=True, slots=True)
class VoiceRequest:
    """What a voice is asked to speak; None: as the voice does by itself."""

    text: str
    voice: str | None = None
    language: str = "auto"
    instruct: str | None = None
    seed: int = 0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    cp_temperature: float | None = None
    cp_top_k: int | None = None
    cp_top_p: float | None = None
    text_mode: Literal["auto", "whole", "streaming"] = "auto"
    max_frames: int | None = None
    chunk: Literal["auto"] | int = "auto"  # frames a chunk; 0: all at the end


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """A piece of audio in the order it is to be heard."""

    pcm: npt.NDArray[np.float32]  # [n], mono, -1..1


@dataclass(frozen=True, slots=True)
class SynthesisStats:
    """What is known of an utterance once it has ended."""

    ended: Ended
    audio_s: float
    frames: int
    n_chunks: int
    ttfb_s: float | None  # seconds from the first text to the first audio; None: no audio
    rtf: float | None  # seconds of work per second of audio; None: no audio
    stages: dict[str, float] = field(default_factory=dict)  # seconds by stage
    warnings: tuple[str, ...] = ()
    pieces: int = 1  # the text was spoken in so many
    retries: int = 0  # pieces made again with another seed
    voice_ttfb_s: float | None = None  # of the voice alone, from opening its first stream


class SynthesisStream(Protocol):
    """One utterance being made.  One thread reads; any thread may cancel."""

    def read(self) -> AudioChunk | None:
        """Block until the next chunk; None at the end.

        Raises InvalidRequest (the text turns out to be unspeakable) or EngineFailure.
        """

    def cancel(self) -> None:
        """Make a blocked or later `read` return None soon.  Idempotent."""

    def close(self) -> None:
        """Free what the stream holds; called by the reading thread after its last read."""

    @property
    def stats(self) -> SynthesisStats:
        """Final figures; only after `read` has returned None."""


class LiveStream(SynthesisStream, Protocol):
    """A stream whose text is still being written.

    `read` blocks while the text has run dry; the audio is the same wherever the text was cut.
    Text may be pushed from any thread.
    """

    def push_text(self, text: str) -> None:
        """Append text as it is."""

    def settle_text(self) -> None:
        """What is pushed next begins with a space or punctuation, if anything is."""

    def finish_text(self) -> None:
        """The text is complete: the voice may end."""


class SynthesisBackend(Protocol):
    """A voice source.  `open` may be called from several threads at once."""

    @property
    def info(self) -> BackendInfo:
        """Facts that never change after loading; cheap."""

    def open(self, request: VoiceRequest) -> SynthesisStream:
        """Start an utterance.

        Raises InvalidRequest or EngineFailure.
        """

    def open_live(self, request: VoiceRequest) -> LiveStream:
        """Start an utterance whose text comes by `push_text`; `request.text` is not looked at.

        Only where `info.takes_live_text`.  Raises InvalidRequest or EngineFailure.
        """

    def close(self) -> None:
        """End every stream and free the voice."""
