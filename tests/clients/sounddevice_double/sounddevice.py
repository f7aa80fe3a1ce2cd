"""Stands for the sound card: what is played is appended to the file SOUNDDEVICE_DOUBLE names.

With SOUNDDEVICE_BREAKS it fails at the second write."""

from __future__ import annotations

import os
from pathlib import Path


class PortAudioError(Exception):
    pass


class RawOutputStream:
    def __init__(self, *, samplerate: int, channels: int, dtype: str) -> None:
        if "SOUNDDEVICE_DOUBLE" not in os.environ:
            raise PortAudioError("no default output device")
        assert (channels, dtype) == (1, "int16")
        self._path = Path(os.environ["SOUNDDEVICE_DOUBLE"])
        self._note(str(samplerate))

    def start(self) -> None:
        self._note("start")

    def write(self, pcm: bytes) -> None:
        if "SOUNDDEVICE_BREAKS" in os.environ and self._path.exists():
            raise PortAudioError("it was pulled out")
        with self._path.open("ab") as file:
            file.write(pcm)

    def stop(self) -> None:
        self._note("stop")

    def abort(self, ignore_errors: bool) -> None:
        self._note("abort")

    def close(self, ignore_errors: bool = True) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        with self._path.with_suffix(".calls").open("a") as file:
            file.write(what + "\n")
