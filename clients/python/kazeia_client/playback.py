"""Playing PCM while it is made."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import Any, Protocol

from kazeia_client.errors import PlaybackError, UsageError
from kazeia_client.formats import AudioFormat

__all__ = ["Player"]


class Player:
    """Plays what is written to it, in order: by the first of the package sounddevice, aplay,
    paplay and ffplay that this machine has.

    Leaving its `with` block returns when everything has been heard, after an exception falls
    silent at once.  `warn`: playing is not all that is wanted; it is told, once, why nothing is
    heard (any more), and what is written from then on is dropped.  Without it a failure raises
    PlaybackError: here where there is nothing to play with, later where a player gives up.
    Raises UsageError for audio that is not PCM.
    """

    def __init__(self, format: AudioFormat, *, warn: Callable[[str], None] | None = None) -> None:
        if format.name not in ("pcm", "wav"):
            raise UsageError(f"{format.name} cannot be played: expected pcm")
        self._warn = warn
        self._sink: _Sink | None = None
        with self._failing():
            self._sink = _first_sink(format)

    def write(self, pcm: bytes) -> None:
        """Play these samples, signed 16-bit; blocks while the device has enough.

        Raises PlaybackError.
        """
        if self._sink is not None:
            with self._failing():
                self._sink.write(pcm)
        elif self._warn is None:
            raise PlaybackError("the player is closed")

    def close(self) -> None:
        """Return when everything has been heard.

        Raises PlaybackError.
        """
        sink, self._sink = self._sink, None
        if sink is not None:
            with self._failing():
                sink.close()

    def abort(self) -> None:
        """Fall silent at once."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except PlaybackError as error:
            self._sink = None
            if self._warn is None:
                raise
            self._warn(str(error))

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class _Sink(Protocol):
    """One that raises PlaybackError is closed."""

    def write(self, pcm: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


def _first_sink(format: AudioFormat) -> _Sink:
    try:
        return _Device(format)
    except PlaybackError as error:
        no_device = error
    rate, channels = format.sample_rate, format.channels
    commands = [
        f"aplay -q -t raw -f S16_LE -c {channels} -r {rate} -",
        f"paplay --raw --format=s16le --channels={channels} --rate={rate}",
    ]
    if channels == 1:  # how more are said depends on its version
        commands.append(f"ffplay -loglevel error -nodisp -autoexit -f s16le -ar {rate} -")
    for command in map(str.split, commands):
        if shutil.which(command[0]):
            return _Program(command)
    raise PlaybackError(
        f"nothing to play with: {no_device}, and there is none of aplay, paplay, ffplay"
    )


class _Device:
    """The sound card, by the package sounddevice."""

    def __init__(self, format: AudioFormat) -> None:
        try:
            sounddevice: Any = importlib.import_module("sounddevice")
        except ImportError:
            raise PlaybackError("sounddevice is missing (pip install sounddevice)") from None
        except OSError as error:  # the package is there, PortAudio itself is not
            raise PlaybackError(
                f"sounddevice cannot be used: {error} (on Debian: apt install libportaudio2)"
            ) from None
        self._error: type[Exception] = sounddevice.PortAudioError
        try:
            self._stream: Any = sounddevice.RawOutputStream(
                samplerate=format.sample_rate, channels=format.channels, dtype="int16"
            )
            self._stream.start()
        except (self._error, ValueError) as error:  # ValueError: of no device that would fit
            raise PlaybackError(f"the sound card cannot be used: {error}") from error

    def write(self, pcm: bytes) -> None:
        self._attempt(self._stream.write, pcm)

    def close(self) -> None:
        self._attempt(self._stream.stop)  # waits for what has been written
        self._stream.close()

    def abort(self) -> None:
        self._stream.abort(ignore_errors=True)
        self._stream.close(ignore_errors=True)

    def _attempt(self, action: Callable[..., None], *arguments: bytes) -> None:
        try:
            action(*arguments)
        except self._error as error:
            self.abort()
            raise PlaybackError(f"the sound card failed: {error}") from error


class _Program:
    """A program that plays its standard input."""

    def __init__(self, command: list[str]) -> None:
        self._name = command[0]
        self._complaints = TemporaryFile()  # noqa: SIM115 - read at the end, however many
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
            )
        except OSError as error:
            self._complaints.close()
            raise PlaybackError(f"{self._name} cannot be started: {error.strerror}") from error

    def write(self, pcm: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pcm)
            self._process.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise PlaybackError(f"{self._name} ended before the speech did") from None

    def close(self) -> None:
        failed, complaints = self._end()
        if failed:
            lines = complaints.decode(errors="replace").strip().splitlines()
            raise PlaybackError(f"{self._name} failed: {lines[0] if lines else 'no reason'}")

    def abort(self) -> None:
        self._process.kill()
        self._end()

    def _end(self) -> tuple[int, bytes]:
        """Wait for its end: the exit status, and what it said on standard error."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        status = self._process.wait()
        with self._complaints as file:
            file.seek(0)
            return status, file.read()
