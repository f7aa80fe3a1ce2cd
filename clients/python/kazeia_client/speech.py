"""What comes back: figures, and complete speech."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazeia_client.errors import UnexpectedAnswer, UsageError
from kazeia_client.foreign import UNUSABLE, number, whole
from kazeia_client.formats import AudioFormat
from kazeia_client.playback import Player
from kazeia_client.wav import WAV_HEADER_BYTES, wav_header

__all__ = ["Speech", "SpeechStats"]


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
        pcm = self.pcm
        with Player(self.format) as player:
            player.write(pcm)


def _number(value: object) -> float | None:
    return None if value is None else number(value)
