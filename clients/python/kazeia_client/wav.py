"""WAV files: their header, and one that is written while its speech is made."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from kazeia_client.errors import UsageError
from kazeia_client.formats import AudioFormat

__all__ = ["WAV_HEADER_BYTES", "WavWriter", "wav_header"]

WAV_HEADER_BYTES = 44
_UNKNOWN = 0xFFFFFFFF


class WavWriter:
    """Writes PCM into a WAV at `target`, a path or an open binary file.

    The header is right when it is closed; where the file cannot be rewound (a pipe) its sizes
    stay unknown, 0xFFFFFFFF, which players take for "to the end".  A file that was given stays
    open.  Raises UsageError for audio that is not PCM, and OSError.
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO, format: AudioFormat) -> None:
        if format.name != "pcm":
            raise UsageError(f"the audio is {format.name}: expected pcm")
        self._format = format
        self._own = isinstance(target, (str, os.PathLike))
        self._file: BinaryIO = (
            Path(target).open("wb")  # noqa: SIM115
            if isinstance(target, (str, os.PathLike))
            else target
        )
        self._bytes = 0
        self._closed = False
        try:
            self._start = self._file.tell() if self._file.seekable() else None
            self._file.write(wav_header(None, format))
        except BaseException:
            self._close_file()
            raise

    def write(self, pcm: bytes) -> None:
        """Append these samples, signed 16-bit, for whoever reads along.

        Raises UsageError for what ends within a sample, and after `close`; OSError.
        """
        if self._closed:
            raise UsageError("the WAV is closed: expected write before close")
        self._format.check_whole(pcm)
        self._file.write(pcm)
        self._file.flush()
        self._bytes += len(pcm)

    @property
    def seconds(self) -> float:
        """The duration of what has been written."""
        return self._format.seconds(self._bytes)

    def close(self) -> None:
        """Complete the header; nothing the second time."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._start is not None:
                self._file.seek(self._start)
                self._file.write(wav_header(self._bytes, self._format))
                self._file.seek(0, os.SEEK_END)
            self._file.flush()
        finally:
            self._close_file()

    def _close_file(self) -> None:
        if self._own:
            self._file.close()

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wav_header(data_bytes: int | None, format: AudioFormat) -> bytes:
    """The 44-byte header of a WAV of 16-bit samples holding `data_bytes` bytes of PCM.

    None: the size is not known yet, and said to be the largest there is, as the server does.
    """
    if data_bytes is None or data_bytes > _UNKNOWN - (WAV_HEADER_BYTES - 8):
        riff_bytes = data_bytes = _UNKNOWN
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
        format.channels,
        format.sample_rate,
        format.sample_rate * format.frame_bytes,
        format.frame_bytes,
        8 * format.sample_width,
        b"data",
        data_bytes,
    )
