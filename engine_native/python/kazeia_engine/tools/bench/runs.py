"""Timed runs of a loaded model."""

from __future__ import annotations

import hashlib
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kazeia_engine.model import Model
    from kazeia_engine.types import Result, TextMode

__all__ = ["SENTENCE", "FirstAudio", "Policy", "Spread", "first_audio", "run_policy", "spoken_text"]

# Some 19 tokens of the true vocabulary: about five seconds of speech.
SENTENCE = "The quick brown fox jumps over the lazy dog while the sun sets slowly behind the hills."
ENVELOPE = 8  # tokens that Model.tokenize puts around a text
_TOKENS = 19  # of the sentence in the true vocabulary
_LONG = 2000  # characters of a long text
_WARMING = 8  # frames
_SEED = 1


@dataclass(frozen=True, slots=True)
class Policy:
    """Medians of several runs with one chunk policy."""

    chunk: str | int
    wall_s: float  # from the call to the last chunk
    rtf: float
    ttfb_ms: float
    n_chunks: int
    stages_ms_per_frame: dict[str, float]
    fingerprint: str  # of the codes: equal fingerprints, equal work

    def as_dict(self) -> dict[str, Any]:
        """For JSON, rounded to what the measurement can say."""
        return {
            "chunk": self.chunk,
            "wall_s": round(self.wall_s, 4),
            "rtf": round(self.rtf, 4),
            "ttfb_ms": round(self.ttfb_ms, 1),
            "n_chunks": self.n_chunks,
            "stages_ms_per_frame": {k: round(v, 3) for k, v in self.stages_ms_per_frame.items()},
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Spread:
    """How several times are distributed, in milliseconds."""

    min: float
    median: float
    p90: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Of one or more times; p90 is the smallest that nine of ten do not exceed."""
        ms = sorted(s * 1000 for s in seconds)
        return cls(ms[0], statistics.median(ms), ms[math.ceil(0.9 * len(ms)) - 1], len(ms))

    def as_dict(self) -> dict[str, Any]:
        """For JSON, rounded to what the measurement can say."""
        return {k: round(v, 1) if isinstance(v, float) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class FirstAudio:
    """Time from the call to the first samples."""

    first: Spread  # of voices that had not spoken before
    cached: Spread  # of the same voices, once more

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"first": self.first.as_dict(), "cached": self.cached.as_dict()}


def spoken_text(model: Model) -> str:
    """The sentence, or as much of it as 19 tokens of this vocabulary hold.

    Synthetic models have a vocabulary of single bytes, in which all of it would be three times the
    prompt.
    """
    text = SENTENCE
    while len(model.tokenize(text)) - ENVELOPE > _TOKENS:
        text = text[:-1]
    return text


def run_policy(model: Model, chunk: str | int, *, frames: int, repeat: int) -> Policy:
    """One warming and `repeat` measured runs of a chunk policy."""
    options: dict[str, Any] = {
        "speaker": model.info.first_speaker,
        "seed": _SEED,
        "max_frames": frames,
        "chunk": chunk,
        "ignore_eos": True,
        "profile": True,
    }
    text = spoken_text(model)
    model.synthesize(text, **{**options, "max_frames": min(frames, _WARMING)})
    walls: list[float] = []
    results: list[Result] = []
    for _ in range(repeat):
        start = time.perf_counter()
        results.append(model.synthesize(text, **options))
        walls.append(time.perf_counter() - start)
    stages = {
        name: statistics.median(r.stages[name] for r in results) * 1000 / len(results[0].codes)
        for name in results[0].stages
    }
    return Policy(
        chunk=chunk,
        wall_s=statistics.median(walls),
        rtf=statistics.median(r.rtf for r in results),
        ttfb_ms=statistics.median(r.ttfb_s for r in results) * 1000,
        n_chunks=results[0].n_chunks,
        stages_ms_per_frame=stages,
        fingerprint=hashlib.sha256(results[0].codes.tobytes()).hexdigest()[:16],
    )


def first_audio(model: Model, *, repeat: int) -> Iterator[tuple[str, FirstAudio | None]]:
    """Layouts of the text and the time to first audio in them.

    Each is measured in up to `repeat` voices that have not spoken yet, fewer where the model has
    not three times as many. A voice is a speaker with a language. None: no voice was left.
    """
    voices = list(itertools.product(model.info.languages, model.info.speakers or (None,)))
    text = spoken_text(model)
    long = (f"{SENTENCE} " * (_LONG // len(SENTENCE) + 1))[:_LONG]
    layouts: tuple[tuple[str, TextMode, str], ...] = (
        ("whole text", "whole", text),
        ("streaming text", "streaming", text),
        (f"streaming text, {_LONG} characters", "streaming", long),
    )
    share = max(1, min(repeat, len(voices) // len(layouts)))
    for i, (name, mode, spoken) in enumerate(layouts):
        first, cached = [], []
        for language, speaker in voices[i * share : (i + 1) * share]:
            options: dict[str, Any] = {"language": language, "speaker": speaker, "text_mode": mode}
            first.append(_seconds_to_audio(model, spoken, options))
            cached.append(_seconds_to_audio(model, spoken, options))
        yield name, FirstAudio(Spread.of(first), Spread.of(cached)) if first else None


def _seconds_to_audio(model: Model, text: str, options: dict[str, Any]) -> float:
    start = time.perf_counter()
    with model.stream(text, max_frames=2, ignore_eos=True, seed=_SEED, **options) as stream:
        next(stream)
        seconds = time.perf_counter() - start
        for _ in stream:  # to its end, so that nothing of it slows the next
            pass
    return seconds
