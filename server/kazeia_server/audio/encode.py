"""From float samples to the bytes of an output format, while they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from kazeia_server.audio.formats import OutputFormat
from kazeia_server.audio.pcm import Samples, pcm16, playable, wav_header

if TYPE_CHECKING:
    from kazeia_server.audio.stretch import RateConverter

__all__ = ["Encoder", "open_encoder"]


class _Coder(Protocol):
    def feed(self, samples: Samples) -> bytes: ...

    def finish(self) -> bytes: ...


class Encoder:
    """One stream in one output format; made by open_encoder.

    Bytes leave as soon as the codec can give them, the header with the first feed.  The bytes
    joined do not depend on how the samples are cut into calls, and are the same every time.
    The memory held does not grow with the stream.  An encoder that is dropped without finish
    needs no farewell.  Belongs to one thread at a time.
    """

    def __init__(self, coder: _Coder, converter: RateConverter | None, sample_rate: int) -> None:
        self._coder = coder
        self._converter = converter
        self.sample_rate = sample_rate  # Hz, of the output

    def feed(self, samples: Samples) -> bytes:
        """Bytes that are ready after samples [n] in -1..1, float32 at the source's rate.

        What lies outside is clipped; NaN and infinity are silence.
        """
        if self._converter is not None:
            samples = self._converter.feed(playable(samples))
        return self._coder.feed(samples)

    def finish(self) -> bytes:
        """The rest of the body, to the last sample.  Called once, after every feed."""
        data = b""
        if self._converter is not None:
            data = self._coder.feed(self._converter.finish())
        return data + self._coder.finish()


def open_encoder(output: OutputFormat, source_rate: int, speed: float = 1.0) -> Encoder:
    """An encoder for mono speech at `source_rate` Hz, to be played `speed` times as fast.

    pcm is signed 16-bit little-endian, an even number of bytes a call; at the source's rate and
    speed 1 exactly what pcm16 gives.  wav is the same behind one header that says the size is not
    known.  mp3 is frames and nothing else, aac the same in ADTS, opus is in Ogg, flac in its own
    container, ulaw and alaw are bare bytes.
    A body without samples is a valid file with nothing, or at most 0.1 s of silence, in it; but
    no bytes at all for pcm, ulaw and alaw.

    Decoded, sound is where it was, without a delay.  pcm, wav, flac, opus, ulaw and alaw have the
    very number of samples that went in.  mp3 and aac come in whole frames: less than a frame of
    silence follows the last sample (mp3: 24 ms at 24 kHz, aac: 21 ms at 48 kHz), and decoders
    fade in over the first; speech should begin with 20 ms of near silence.  An mp3 shorter than
    two frames is filled up with silence.

    Raises InvalidRequest for an impossible speed, EngineFailure when FFmpeg lacks the encoder.
    """
    # PyAV is imported where it is needed: plain PCM does without it.
    rate = output.rate_for(source_rate)
    converter: RateConverter | None = None
    if rate != source_rate or speed != 1.0:
        from kazeia_server.audio.stretch import RateConverter as Converter

        converter = Converter(source_rate, rate, speed)
    coder: _Coder
    if output.name in ("pcm", "wav"):
        coder = _Pcm(wav_header(None, rate) if output.name == "wav" else b"")
    else:
        from kazeia_server.audio.codec import Codec

        coder = Codec(output.name, rate, output.bitrate)
    return Encoder(coder, converter, rate)


class _Pcm:
    def __init__(self, header: bytes) -> None:
        self._header = header

    def feed(self, samples: Samples) -> bytes:
        header, self._header = self._header, b""
        return header + pcm16(samples)

    def finish(self) -> bytes:
        return self.feed(np.zeros(0, np.float32))
