"""The formats audio can leave in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from kazeia_server.errors import InvalidRequest

__all__ = [
    "ELEVENLABS_FORMATS",
    "FORMAT_NAMES",
    "PCM",
    "FormatName",
    "OutputFormat",
    "parse_output_format",
]

FormatName = Literal["pcm", "wav", "mp3", "opus", "aac", "flac", "ulaw", "alaw"]
FORMAT_NAMES: tuple[str, ...] = get_args(FormatName)

_CONTENT_TYPES: dict[str, str] = {
    "pcm": "audio/pcm",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "ulaw": "audio/basic",
    "alaw": "audio/x-alaw-basic",
}

_RATE_RANGE = (8_000, 48_000)
# Codecs that know only some rates: Hz, ascending.
_MPEG_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_RATES: dict[str, tuple[int, ...]] = {
    "mp3": _MPEG_RATES,
    "aac": _MPEG_RATES,
    "opus": (8_000, 12_000, 16_000, 24_000, 48_000),
}
# Opus is decoded at 48 kHz whatever it was made from; an AAC frame of 1,024 samples is 21 ms
# there, and 43 ms at the 24 kHz of most voices; G.711 is telephony.
_OWN_RATES: dict[str, int] = {"opus": 48_000, "aac": 48_000, "ulaw": 8_000, "alaw": 8_000}
_BITRATES: dict[str, tuple[int, int]] = {
    "mp3": (8_000, 320_000),
    "opus": (6_000, 256_000),
    "aac": (8_000, 256_000),
}


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format and its parameters.

    `sample_rate` in Hz, None: the voice's own, or what the codec needs.  `bitrate` in bit/s, None:
    the codec's default; for mp3, opus and aac only.
    Raises InvalidRequest when no encoder can make it.
    """

    name: FormatName = "pcm"
    sample_rate: int | None = None
    bitrate: int | None = None

    def __post_init__(self) -> None:
        if self.name not in FORMAT_NAMES:
            raise InvalidRequest(
                f"there is no format {self.name!r}: expected {', '.join(FORMAT_NAMES)}",
                param="response_format",
            )
        self._check_rate()
        self._check_bitrate()

    @property
    def content_type(self) -> str:
        """The media type of a body in this format."""
        return _CONTENT_TYPES[self.name]

    def rate_for(self, source_rate: int) -> int:
        """The sample rate of the output, in Hz, of a voice that speaks at `source_rate`."""
        if self.sample_rate is not None:
            return self.sample_rate
        if self.name in _OWN_RATES:
            return _OWN_RATES[self.name]
        known = _RATES.get(self.name, (source_rate,))
        return next((rate for rate in known if rate >= source_rate), known[-1])

    def _check_rate(self) -> None:
        rate = self.sample_rate
        if rate is None:
            return
        known = _RATES.get(self.name)
        lowest, highest = _RATE_RANGE
        if known is not None and rate not in known:
            expected = ", ".join(map(str, known))
        elif not lowest <= rate <= highest:
            expected = f"{lowest} to {highest}"
        else:
            return
        raise InvalidRequest(
            f"{self.name} at {rate} Hz is not possible: expected {expected}", param="sample_rate"
        )

    def _check_bitrate(self) -> None:
        if self.bitrate is None:
            return
        limits = _BITRATES.get(self.name)
        if limits is None:
            raise InvalidRequest(f"{self.name} has no choice of bit rate", param="bitrate")
        if not limits[0] <= self.bitrate <= limits[1]:
            raise InvalidRequest(
                f"{self.name} at {self.bitrate} bit/s is not possible: "
                f"expected {limits[0]} to {limits[1]}",
                param="bitrate",
            )


PCM = OutputFormat()

# Those the ElevenLabs API documents: codec, sample rate in Hz, and kbit/s where it has a choice.
ELEVENLABS_FORMATS: tuple[str, ...] = (
    "mp3_22050_32",
    "mp3_24000_48",
    *(f"mp3_44100_{kbit}" for kbit in (32, 64, 96, 128, 192)),
    *(f"mp3_48000_{kbit}" for kbit in (128, 192, 240, 320)),
    *(f"pcm_{rate}" for rate in (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)),
    *(f"wav_{rate}" for rate in (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)),
    *(f"opus_48000_{kbit}" for kbit in (32, 64, 96, 128, 192)),
    "ulaw_8000",
    "alaw_8000",
)


def parse_output_format(name: str) -> OutputFormat:
    """The format that a name of the ElevenLabs API stands for, such as mp3_44100_128.

    Raises InvalidRequest listing the names there are.
    """
    if name not in ELEVENLABS_FORMATS:
        shown = name if len(name) <= 40 else name[:37] + "..."
        raise InvalidRequest(
            f"there is no output_format {shown!r}: expected {', '.join(ELEVENLABS_FORMATS)}",
            param="output_format",
        )
    codec, rate, *kbit = name.split("_")
    return OutputFormat(cast(FormatName, codec), int(rate), int(kbit[0]) * 1000 if kbit else None)
