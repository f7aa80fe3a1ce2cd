"""Playing 16-bit mono PCM while it is made."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable
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


def open_player(sample_rate: int, *, warn: Callable[[str], None] | None = None) -> Player:
    """The first of sounddevice, aplay, paplay and ffplay that this machine has.

    `warn`: playing is not all that is wanted.  It is told, once, why nothing is heard (any more),
    and what is written from then on is dropped.  Without it, failures raise InvalidRequest: here
    when there is nothing to play with, later when a player gives up.
    """
    if warn is None:
        return _first_player(sample_rate)
    try:
        return _Optional(_first_player(sample_rate), warn)
    except InvalidRequest as error:
        warn(error.message)
        return _Optional(None, warn)


def _first_player(sample_rate: int) -> Player:
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


class _Optional:
    """A player whose failure is only worth a warning."""

    def __init__(self, player: Player | None, warn: Callable[[str], None]) -> None:
        self._player = player
        self._warn = warn

    def write(self, pcm: bytes) -> None:
        self._attempt(lambda player: player.write(pcm))

    def close(self) -> None:
        self._attempt(lambda player: player.close())

    def abort(self) -> None:
        self._attempt(lambda player: player.abort())

    def _attempt(self, action: Callable[[Player], None]) -> None:
        if self._player is None:
            return
        try:
            action(self._player)
        except InvalidRequest as error:
            self._player = None
            self._warn(error.message)


class _Device:
    def __init__(self, sample_rate: int) -> None:
        sounddevice: Any = importlib.import_module("sounddevice")  # optional
        self._error: type[Exception] = sounddevice.PortAudioError
        try:
            self._stream: Any = sounddevice.RawOutputStream(
                samplerate=sample_rate, channels=1, dtype="int16"
            )
            self._stream.start()
        except self._error as error:
            raise OSError(str(error)) from error

    def write(self, pcm: bytes) -> None:
        try:
            self._stream.write(pcm)
        except self._error as error:
            self.abort()
            raise InvalidRequest(f"sounddevice failed: {error}") from error

    def close(self) -> None:
        self._stream.stop()  # waits for what has been written
        self._stream.close()

    def abort(self) -> None:
        self._stream.abort(ignore_errors=True)
        self._stream.close(ignore_errors=True)


class _Process:
    def __init__(self, command: list[str]) -> None:
        self._name = command[0]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise InvalidRequest(f"{self._name} cannot be started: {error.strerror}") from error

    def write(self, pcm: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pcm)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._finish()
            raise InvalidRequest(f"{self._name} ended before the speech did") from None

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
