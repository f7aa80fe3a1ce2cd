"""Encoders of FFmpeg and their containers, as streams of bytes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.packet import Packet

from kazeia_server.audio.formats import FormatName
from kazeia_server.audio.pcm import Blocks, Samples, pcm16, playable
from kazeia_server.errors import EngineFailure

__all__ = ["Codec"]


@dataclass(frozen=True, slots=True)
class _Recipe:
    codec: str
    container: str
    sample_format: str  # one that the codec takes
    bitrate: int | None = None  # bit/s
    muxer: dict[str, str] = field(default_factory=dict)
    encoder: dict[str, str] = field(default_factory=dict)
    framed: bool = False  # the container can say neither where sound begins nor where it ends
    lead: int = 0  # samples of silence that make the encoder's delay whole frames
    least: int = 0  # samples without which nobody can read the file


_RECIPES: dict[str, _Recipe] = {
    # The muxer's own headers would have to be completed at the end.  Without the bit reservoir
    # a frame needs no bits of those before it.  LAME is 1,105 samples late.
    "mp3": _Recipe(
        "libmp3lame",
        "mp3",
        "fltp",
        64_000,
        {"write_xing": "0", "id3v2_version": "0"},
        {"reservoir": "0"},
        framed=True,
        lead=1152 - 1105,
        least=1152 + 1,  # readers believe the first frame when they see a second
    ),
    # A page a packet of 20 ms: the muxer keeps one page back until it has the next.
    "opus": _Recipe("libopus", "ogg", "flt", 48_000, {"page_duration": "20000"}, least=1),
    "aac": _Recipe("aac", "adts", "fltp", 64_000, framed=True, least=1),
    "flac": _Recipe(
        "flac", "flac", "s16", None, {"metadata_header_padding": "0"}, {"frame_size": "1024"}
    ),
    "ulaw": _Recipe("pcm_mulaw", "mulaw", "s16"),
    "alaw": _Recipe("pcm_alaw", "alaw", "s16"),
}


class Codec:
    """Encodes one mono stream.

    The bytes do not depend on how the samples are cut into calls, nor on time or chance: the same
    samples give the same bytes with the same build of FFmpeg on the same kind of processor.
    Belongs to one thread at a time.

    Raises EngineFailure when this FFmpeg lacks the encoder, or refuses its parameters.
    """

    def __init__(self, name: FormatName, sample_rate: int, bitrate: int | None = None) -> None:
        recipe = _RECIPES[name]
        self._recipe = recipe
        self._rate = sample_rate
        self._sink = _Sink()
        try:
            self._container = av.open(
                self._sink,
                "w",
                format=recipe.container,
                # bitexact: no version strings, and a fixed serial number in Ogg
                options={"flush_packets": "1", "fflags": "bitexact", **recipe.muxer},
            )
            # A container and its streams hold each other, hundreds of kilobytes of them: one
            # that is dropped unfinished would wait for the garbage collector.
            weakref.finalize(self, self._container.close).atexit = False
            stream = self._container.add_stream(
                recipe.codec, rate=sample_rate, options={"flags": "bitexact", **recipe.encoder}
            )
            assert isinstance(stream, AudioStream)
            stream.layout = "mono"
            stream.format = recipe.sample_format
            chosen = bitrate or recipe.bitrate
            if chosen is not None:
                stream.bit_rate = chosen
            self._container.start_encoding()
        except (av.FFmpegError, ValueError) as error:
            raise EngineFailure(f"cannot encode {name}: {error}") from error
        self._stream = stream
        self._blocks = Blocks(stream.codec_context.frame_size or max(1, sample_rate // 50))
        self._blocks.feed(np.zeros(recipe.lead, np.float32))
        self._position = -recipe.lead  # of the next sample in the stream

    def feed(self, samples: Samples) -> bytes:
        """Bytes that are ready after samples [n]; the container's header is among the first."""
        for block in self._blocks.feed(samples):
            self._encode(block)
        return self._sink.drain()

    def finish(self) -> bytes:
        """The rest of the file, to the last sample.  Called once, after every feed."""
        rest = self._blocks.finish()
        missing = self._recipe.least - (self._position + len(rest))
        if missing > 0:
            rest = np.pad(rest, (0, missing))
        for block in (*self._blocks.feed(rest), self._blocks.finish()):
            self._encode(block)
        self._write(self._stream.encode(None))
        self._container.close()
        return self._sink.drain()

    def _encode(self, samples: Samples) -> None:
        if not len(samples):
            return
        if self._recipe.sample_format == "s16":
            frame = AudioFrame.from_ndarray(
                np.frombuffer(pcm16(samples), np.int16)[np.newaxis], format="s16", layout="mono"
            )
        else:
            frame = AudioFrame.from_ndarray(
                playable(samples)[np.newaxis], format="flt", layout="mono"
            )
        frame.sample_rate = self._rate
        frame.time_base = Fraction(1, self._rate)
        frame.pts = self._position
        self._position += len(samples)
        self._write(self._stream.encode(frame))

    def _write(self, packets: Iterable[Packet[AudioStream]]) -> None:
        for packet in packets:
            begin = packet.pts or 0  # negative: the encoder's delay
            end = begin + (packet.duration or 0)
            if begin >= self._position or (self._recipe.framed and end <= 0):
                # Nothing but padding.  Decoders play all there is of a framed stream; one that
                # misses the first frames begins as if it had tuned in, and fades in.
                continue
            self._container.mux(packet)


class _Sink:
    """What the muxer writes to: it cannot seek, so that no header is completed later."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def drain(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data
