"""From float samples to 16-bit PCM and WAV."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

__all__ = ["WAV_HEADER_BYTES", "pcm16", "wav_header"]

WAV_HEADER_BYTES = 44
_MAX_DATA_BYTES = 0xFFFFFFFF - (WAV_HEADER_BYTES - 8)


def pcm16(samples: npt.NDArray[np.float32]) -> bytes:
    """Float samples [n] in -1..1 as signed 16-bit little-endian bytes [2n].

    Rounds to nearest, clips what lies outside; -1.0 and 1.0 map to -32767 and 32767, so that
    silence and polarity are exact.  NaN becomes silence.
    """
    scaled = np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0) * np.float32(32767.0)
    rounded: npt.NDArray[np.int16] = np.clip(np.rint(scaled), -32767, 32767).astype("<i2")
    return rounded.tobytes()


def wav_header(data_bytes: int, sample_rate: int) -> bytes:
    """The canonical 44-byte header of a mono 16-bit WAV holding `data_bytes` bytes of PCM.

    Raises ValueError when the size is odd, negative or more than RIFF can state.
    """
    if data_bytes < 0 or data_bytes % 2 or data_bytes > _MAX_DATA_BYTES:
        raise ValueError(f"expected an even size of at most {_MAX_DATA_BYTES}, got {data_bytes}")
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        WAV_HEADER_BYTES - 8 + data_bytes,
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
