"""What comes back: formats, figures, and complete speech."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazeia_client.errors import UnexpectedAnswer, UsageError
from kazeia_client.foreign import UNUSABLE, number, whole

__all__ = ["WAV_HEADER_BYTES", "AudioFormat", "Speech", "SpeechStats", "wav_header"]

WAV_HEADER_BYTES = 44
_UNKNOWN = 0xFFFFFFFF
# What a WAV header has room for, and any sound card could mean.
_MAX_RATE = 768_000
_MAX_CHANNELS = 64
_MAX_WIDTH = 4
_CONTENT_TYPES = {"audio/pcm": "pcm", "audio/wav": "wav", "audio/mpeg": "mp3", "audio/ogg": "opus"}
_CONTENT_TYPES |= {"audio/aac": "aac", "audio/flac": "flac"}
_CONTENT_TYPES |= {"audio/basic": "ulaw", "audio/x-alaw-basic": "alaw"}


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """How bytes stand for sound.

    `name` is "pcm" (signed 16-bit little-endian samples, `sample_width` 2 bytes), "wav", "mp3",
    "opus", ...; `sample_rate` in Hz.
    """

    name: str
    sample_rate: int
    channels: int = 1
    sample_width: int = 2

    def __post_init__(self) -> None:
        for what, value, most in (
            ("sample_rate", self.sample_rate, _MAX_RATE),
            ("channels", self.channels, _MAX_CHANNELS),
            ("sample_width", self.sample_width, _MAX_WIDTH),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise UsageError(f"expected {what} from 1 to {most}, got {str(value)[:40]}")

    @property
    def frame_bytes(self) -> int:
        """Of PCM: a sample of every channel."""
        return self.channels * self.sample_width

    def check_whole(self, pcm: bytes) -> None:
        """Raise UsageError for PCM that ends within a sample."""
        if self.name == "pcm" and len(pcm) % self.frame_bytes:
            raise UsageError(
                f"expected whole samples of {self.frame_bytes} bytes, got {len(pcm)} bytes"
            )

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> AudioFormat:
        """The format of an `audio.start`."""
        try:
            return cls(
                str(message["format"]), whole(message["sample_rate"]), whole(message["channels"])
            )
        except UNUSABLE as error:
            raise UnexpectedAnswer(f"an audio.start lacks what it should say: {error!r}") from None

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> AudioFormat:
        """The format of an HTTP answer."""
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        rate = headers.get("x-kazeia-sample-rate", "")
        try:
            return cls(_CONTENT_TYPES[content_type], whole(rate))
        except UNUSABLE:
            raise UnexpectedAnswer(
                "expected speech of a Kazeia server, got "
                f"{content_type[:100] or 'an answer without a type'} and "
                + (f"{rate[:40]!r} for a sample rate" if rate else "no sample rate")
            ) from None

    def seconds(self, n_bytes: int) -> float:
        """The duration of so many bytes of PCM."""
        return n_bytes / (self.sample_rate * self.frame_bytes)


@dataclass(frozen=True, slots=True)
class SpeechStats:
    """How an utterance went.

    `ended`: "eos" (by itself), "empty" (nothing in the text can be spoken), or why it was cut:
    "max_frames", "runaway", "silence", "repetition".  `ttfb_s` seconds from the first words to the
    first audio and `voice_ttfb_s` the voice's part of them, `rtf` seconds of work a second of
    audio, all as the server saw it; None where there was no audio.  A frame is 80 ms.
    """

    ended: str
    audio_s: float
    frames: int
    chunks: int
    ttfb_s: float | None = None
    voice_ttfb_s: float | None = None
    rtf: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def was_cut(self) -> bool:
        """Whether the speech ended before its text did."""
        return self.ended not in ("eos", "empty")

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> SpeechStats:
        """The figures of an `audio.done`."""
        try:
            return cls(
                ended=str(message["ended"]),
                audio_s=number(message["audio_s"]),
                frames=whole(message["frames"]),
                chunks=whole(message["n_chunks"]),
                ttfb_s=_number(message.get("ttfb_s")),
                voice_ttfb_s=_number(message.get("voice_ttfb_s")),
                rtf=_number(message.get("rtf")),
                warnings=tuple(map(str, message.get("warnings") or ())),
            )
        except UNUSABLE as error:
            raise UnexpectedAnswer(f"an audio.done lacks what it should say: {error!r}") from None

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> SpeechStats:
        """The figures of a complete HTTP answer: its X-Kazeia-* headers."""
        warnings = headers.get("x-kazeia-warnings")
        try:
            return cls(
                ended=headers["x-kazeia-ended"],
                audio_s=number(headers["x-kazeia-audio-seconds"]),
                frames=whole(headers["x-kazeia-frames"]),
                chunks=whole(headers["x-kazeia-chunks"]),
                ttfb_s=_number(headers.get("x-kazeia-ttfb")),
                voice_ttfb_s=_number(headers.get("x-kazeia-voice-ttfb")),
                rtf=_number(headers.get("x-kazeia-rtf")),
                warnings=tuple(warnings.split("; ")) if warnings else (),
            )
        except KeyError as error:
            raise UnexpectedAnswer(f"an answer lacks the header {error}") from None
        except ValueError as error:
            raise UnexpectedAnswer(f"a header of an answer is unusable: {error}") from None


@dataclass(frozen=True, slots=True)
class Speech:
    """A complete utterance: `data` is a file in `format`, or bare samples for "pcm".

    `voice` is None where the model has no named voices; `source` is "qwen3-tts" or "built-in".
    """

    data: bytes
    format: AudioFormat
    stats: SpeechStats
    voice: str | None
    source: str
    request_id: str | None = None

    @property
    def pcm(self) -> bytes:
        """The samples, signed 16-bit little-endian; of "pcm" and "wav" only.

        Raises UsageError for what would have to be decoded.
        """
        if self.format.name == "pcm":
            return self.data
        if self.format.name == "wav":
            return self.data[WAV_HEADER_BYTES:]
        raise UsageError(f"the speech is {self.format.name}: expected pcm or wav")

    @property
    def wav(self) -> bytes:
        """A WAV file; of "pcm" and "wav" only.

        Raises UsageError for what would have to be decoded.
        """
        if self.format.name == "wav":
            return self.data
        pcm = self.pcm
        return wav_header(len(pcm), self.format) + pcm

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `data` to a file, whatever its suffix."""
        Path(path).write_bytes(self.data)

    def play(self) -> None:
        """Play it, and return when it has been heard; of "pcm" and "wav" only.

        Raises PlaybackError, UsageError.
        """
        from kazeia_client.playback import Player

        pcm = self.pcm
        with Player(self.format) as player:
            player.write(pcm)


def wav_header(data_bytes: int | None, format: AudioFormat) -> bytes:
    """The 44-byte header of a WAV of 16-bit samples holding `data_bytes` bytes of PCM.

    None: the size is not known yet, and said to be the largest there is, as the server does.
    """
    known = data_bytes is not None and data_bytes <= _UNKNOWN - WAV_HEADER_BYTES
    frame_bytes = format.frame_bytes
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        WAV_HEADER_BYTES - 8 + (data_bytes or 0) if known else _UNKNOWN,
        b"WAVE",
        b"fmt ",
        16,  # bytes of the format block
        1,  # PCM
        format.channels,
        format.sample_rate,
        format.sample_rate * frame_bytes,
        frame_bytes,
        8 * format.sample_width,
        b"data",
        data_bytes or 0 if known else _UNKNOWN,
    )


def _number(value: object) -> float | None:
    return None if value is None else number(value)
