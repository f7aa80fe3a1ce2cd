"""How bytes stand for sound: the names of formats, and what PCM needs to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kazeia_client.errors import UnexpectedAnswer, UsageError
from kazeia_client.foreign import UNUSABLE, whole

__all__ = ["AudioFormat", "FormatName", "format_of_file"]

FormatName = Literal["pcm", "wav", "mp3", "opus", "aac", "flac", "ulaw", "alaw"]

_BY_SUFFIX: dict[str, FormatName] = {
    ".wav": "wav",
    ".mp3": "mp3",
    ".opus": "opus",
    ".ogg": "opus",
    ".aac": "aac",
    ".flac": "flac",
    ".pcm": "pcm",
    ".raw": "pcm",
}
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


def format_of_file(output: Path | None) -> FormatName:
    """The format that the suffix of a file to be written chooses; None, "-" (standard output) and
    no suffix: WAV.

    Raises UsageError for an unknown suffix, and where no file can be.
    """
    if output is None or str(output) == "-":
        return "wav"
    if not output.parent.is_dir():
        raise UsageError(f"{output.parent} is not a folder: cannot write {output}")
    if output.is_dir():
        raise UsageError(f"{output} is a folder: expected the name of an audio file")
    if not output.suffix:
        return "wav"
    name = _BY_SUFFIX.get(output.suffix.lower())
    if name is None:
        known = ", ".join(_BY_SUFFIX)
        raise UsageError(f"{output} has the suffix {output.suffix}: expected one of {known}")
    return name
