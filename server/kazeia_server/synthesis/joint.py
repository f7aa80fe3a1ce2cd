"""Where the pieces of an utterance meet."""

from __future__ import annotations

import numpy as np

from kazeia_server.audio.pcm import SILENT, Samples

__all__ = ["Joint"]

_LEAD_S = 0.02  # kept before the first sound, so that a soft consonant keeps its onset
_FADE_S = 0.003


class Joint:
    """Drops leading silence, gives pauses one length, and lets nothing click."""

    def __init__(self, sample_rate: int, *, trim: bool) -> None:
        self._trim = trim
        self._lead = round(_LEAD_S * sample_rate)
        self._fade = round(_FADE_S * sample_rate)
        self._rate = sample_rate
        self._first = True
        self._waiting = True  # nothing but silence came so far
        self._kept: Samples = np.empty(0, np.float32)  # the end of that silence
        self._silent = 0  # samples of silence at the end of what was let through
        self._last = np.float32(0.0)
        self._before = (self._silent, self._last)

    def begin(self, *, first: bool) -> None:
        """A piece, or another try of it, begins."""
        self._before = (self._silent, self._last)
        self._first = first
        self._waiting = True
        self._kept = np.empty(0, np.float32)

    def rewind(self) -> None:
        """Nothing of the piece is heard after all."""
        self._silent, self._last = self._before

    def feed(self, samples: Samples) -> Samples:
        """What is to be heard of a chunk [n] of the piece; maybe nothing yet."""
        if self._waiting:
            if self._trim:
                loud = np.flatnonzero(np.abs(samples) > SILENT)
                if not len(loud):
                    self._kept = np.concatenate((self._kept, samples))[-self._lead :]
                    return np.empty(0, np.float32)
                start = max(0, int(loud[0]) - self._lead)
                before = self._kept[max(0, len(self._kept) - self._lead + int(loud[0])) :]
                samples = samples[start:] if start else np.concatenate((before, samples))
            self._waiting = False
            if not self._first:
                samples = samples.copy()
                n = min(self._fade, len(samples))
                samples[:n] *= np.linspace(0.0, 1.0, n, dtype=np.float32)
        self._measure(samples)
        return samples

    def pause(self, seconds: float) -> Samples:
        """Silence [n] that makes the pause after the last piece `seconds` long."""
        ramp = self._last * np.linspace(1.0, 0.0, self._fade, dtype=np.float32)
        missing = round(seconds * self._rate) - self._silent
        silence = np.zeros(max(0, missing - len(ramp)), np.float32)
        self._silent = 0
        return np.concatenate((ramp, silence)) if abs(self._last) > 0 else silence

    def _measure(self, samples: Samples) -> None:
        if not len(samples):
            return
        self._last = samples[-1]
        loud = np.flatnonzero(np.abs(samples) > SILENT)
        if len(loud):
            self._silent = len(samples) - 1 - int(loud[-1])
        else:
            self._silent += len(samples)
