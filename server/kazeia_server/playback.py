"""Playing 16-bit mono PCM while it is made."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from typing import Any, Protocol

from kazeia_server.errors import InvalidRequest

__all__ = ["Player", "open_player"]


class Player(Protocol):
    """Takes PCM and plays it in order."""

    def write(self, pcm: bytes) -> None:
        """Play these samples; blocks while the device has enough."""

    def close(self) -> None:
        """Return when everything has been heard."""

    def abort(self) -> None:
        """Fall silent at once."""


def open_player(sample_rate: int) -> Player:
    """The first of sounddevice, aplay, paplay and ffplay that this machine has.

    Raises InvalidRequest naming them when there is none.
    """
    try:
        return _Device(sample_rate)
    except (ImportError, OSError):  # OSError: PortAudio itself is missing
        pass
    rate = str(sample_rate)
    commands = (
        ["aplay", "-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", rate, "-"],
        ["paplay", "--raw", "--format=s16le", "--channels=1", f"--rate={rate}"],
        ["ffplay", "-loglevel", "error", "-nodisp", "-autoexit", "-f", "s16le", "-ar", rate, "-"],
    )
    for command in commands:
        if shutil.which(command[0]):
            return _Process(command)
    raise InvalidRequest(
        "nothing to play with: install the Python package sounddevice, or one of aplay, paplay, "
        "ffplay; -o FILE writes a WAV instead"
    )


class _Device:
    def __init__(self, sample_rate: int) -> None:
        sounddevice: Any = importlib.import_module("sounddevice")  # optional
        try:
            self._stream: Any = sounddevice.RawOutputStream(
                samplerate=sample_rate, channels=1, dtype="int16"
            )
            self._stream.start()
        except sounddevice.PortAudioError as error:
            raise OSError(str(error)) from error

    def write(self, pcm: bytes) -> None:
        self._stream.write(pcm)

    def close(self) -> None:
        self._stream.stop()  # waits for what has been written
        self._stream.close()

    def abort(self) -> None:
        self._stream.abort()
        self._stream.close()


class _Process:
    def __init__(self, command: list[str]) -> None:
        self._name = command[0]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def write(self, pcm: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pcm)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._finish()

    def close(self) -> None:
        self._finish()

    def abort(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _finish(self) -> None:
        _, complaint = self._process.communicate()
        if self._process.returncode:
            reason = complaint.decode(errors="replace").strip().splitlines()
            raise InvalidRequest(f"{self._name} failed: {reason[0] if reason else 'no reason'}")
