"""Playing PCM on the sound card, by the package sounddevice where it is installed."""

from __future__ import annotations

import importlib
from types import TracebackType
from typing import Any

from kazeia_client.errors import PlaybackError, UsageError
from kazeia_client.speech import AudioFormat

__all__ = ["Player"]


class Player:
    """Plays what is written to it, in order.

    Leaving its `with` block returns when everything has been heard, after an exception falls
    silent at once.  Raises UsageError for audio that is not PCM, PlaybackError where there is
    nothing to play with.
    """

    def __init__(self, format: AudioFormat) -> None:
        if format.name not in ("pcm", "wav"):
            raise UsageError(f"{format.name} cannot be played: expected pcm")
        sounddevice = _sounddevice()
        self._over = False
        self._error: type[Exception] = sounddevice.PortAudioError
        try:
            self._stream: Any = sounddevice.RawOutputStream(
                samplerate=format.sample_rate, channels=format.channels, dtype="int16"
            )
            self._stream.start()
        except (self._error, ValueError) as error:  # ValueError: of no device that would fit
            raise PlaybackError(f"the sound card cannot be used: {error}") from error

    def write(self, pcm: bytes) -> None:
        """Play these samples, signed 16-bit; blocks while the device has enough.

        Raises PlaybackError.
        """
        try:
            self._stream.write(pcm)
        except self._error as error:
            self.abort()
            raise PlaybackError(f"the sound card failed: {error}") from error

    def close(self) -> None:
        """Return when everything has been heard.

        Raises PlaybackError.
        """
        if self._over:
            return
        try:
            self._stream.stop()
        except self._error as error:
            self.abort()
            raise PlaybackError(f"the sound card failed: {error}") from error
        self._over = True
        self._stream.close()

    def abort(self) -> None:
        """Fall silent at once."""
        if not self._over:
            self._over = True
            self._stream.abort(ignore_errors=True)
            self._stream.close(ignore_errors=True)

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _sounddevice() -> Any:
    try:
        return importlib.import_module("sounddevice")
    except ImportError:
        raise PlaybackError(
            "playing needs the package sounddevice: pip install sounddevice"
        ) from None
    except OSError as error:  # the package is there, PortAudio itself is not
        raise PlaybackError(
            f"sounddevice cannot be used: {error} (on Debian: apt install libportaudio2)"
        ) from None
