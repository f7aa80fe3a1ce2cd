"""From float samples to 16-bit PCM and WAV."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

__all__ = ["SILENT", "WAV_HEADER_BYTES", "Blocks", "Samples", "pcm16", "playable", "wav_header"]

Samples = npt.NDArray[np.float32]

# Below this the ear hears nothing beside speech: -50 dB of full scale, as in the engine's guard.
SILENT = 0.00316

WAV_HEADER_BYTES = 44
_UNKNOWN = 0xFFFFFFFF
_MAX_DATA_BYTES = _UNKNOWN - (WAV_HEADER_BYTES - 8)


def playable(samples: Samples) -> Samples:
    """The samples with what lies outside -1..1 clipped, and silence for NaN and infinity."""
    return np.where(np.isfinite(samples), np.clip(samples, -1.0, 1.0), np.float32(0.0))


def pcm16(samples: Samples) -> bytes:
    """Float samples [n] in -1..1 as signed 16-bit little-endian bytes [2n].

    Rounds to nearest, clips what lies outside; -1.0 and 1.0 map to -32767 and 32767, so that
    silence and polarity are exact.  NaN and infinity become silence.
    """
    whole: npt.NDArray[np.int16] = np.rint(playable(samples) * np.float32(32767.0)).astype("<i2")
    return whole.tobytes()


def wav_header(data_bytes: int | None, sample_rate: int) -> bytes:
    """The canonical 44-byte header of a mono 16-bit WAV holding `data_bytes` bytes of PCM.

    None: the size is not known yet.  Both sizes are then the largest that RIFF can state, as
    OpenAI's streams have them; players read on to the end of the body.
    Raises ValueError when the size is odd, negative or more than RIFF can state.
    """
    if data_bytes is None:
        riff_bytes = data_bytes = _UNKNOWN
    elif data_bytes < 0 or data_bytes % 2 or data_bytes > _MAX_DATA_BYTES:
        raise ValueError(f"expected an even size of at most {_MAX_DATA_BYTES}, got {data_bytes}")
    else:
        riff_bytes = WAV_HEADER_BYTES - 8 + data_bytes
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        riff_bytes,
        b"WAVE",
        b"fmt ",
        16,  # bytes of the format block
        1,  # PCM
        1,  # channel
        sample_rate,
        sample_rate * 2,  # bytes a second
        2,  # bytes a sample
        16,  # bits a sample
        b"data",
        data_bytes,
    )


class Blocks:
    """Cuts a stream of samples into blocks of one size, in whatever sizes it comes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rest: Samples = np.zeros(0, np.float32)

    def feed(self, samples: Samples) -> list[Samples]:
        """The blocks [size] that are complete."""
        joined = np.concatenate((self._rest, samples))
        end = len(joined) - len(joined) % self._size
        self._rest = joined[end:].copy()
        return [joined[start : start + self._size] for start in range(0, end, self._size)]

    def finish(self) -> Samples:
        """What is left, shorter than a block; may be empty."""
        rest, self._rest = self._rest, np.zeros(0, np.float32)
        return rest
