"""`kazeia bench`: speed and memory of a model on this machine, as a table and as JSON."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kazeia_engine.errors import InvalidInput
from kazeia_engine.machine import Machine, peak_rss_bytes
from kazeia_engine.modelfiles import find_pair

if TYPE_CHECKING:
    from kazeia_engine.model import Model
    from kazeia_engine.types import Result

__all__ = ["SENTENCE", "Policy", "bench", "run_policy", "spoken_text"]

# Some 19 tokens of the true vocabulary: about five seconds of speech.
SENTENCE = "The quick brown fox jumps over the lazy dog while the sun sets slowly behind the hills."
_TOKENS = 19  # of the sentence in the true vocabulary
_ENVELOPE = 8  # tokens that Model.tokenize puts around a text
_COMPARED: tuple[str | int, ...] = ("auto", 1, 0)
_SEED = 1

Log = Callable[[str], None]


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


def spoken_text(model: Model) -> str:
    """The sentence, or as much of it as 19 tokens of this vocabulary hold.

    Synthetic models have a vocabulary of single bytes, in which all of it would be three times the
    prompt.
    """
    text = SENTENCE
    while len(model.tokenize(text)) - _ENVELOPE > _TOKENS:
        text = text[:-1]
    return text


def bench(
    path: Path,
    *,
    frames: int = 64,
    chunk: str | int = "auto",
    repeat: int = 3,
    threads: int | None = None,
    log: Log = lambda _line: None,
) -> dict[str, Any]:
    """Loads a model and measures it; the values of `chunk` "auto", 1 and 0 are always compared.

    frames: length of every run; end-of-speech is ignored.
    repeat: measured runs a policy, after one that warms up.

    Returns rtf, ttfb_ms, stages_ms_per_frame (medians, of `chunk`), rss_mb (peak of the process,
    loading included), machine, and how it was measured.
    Raises InvalidInput, ModelNotFound, ModelFormatError.
    """
    for name, value in (("frames", frames), ("repeat", repeat)):
        if value < 1:
            raise InvalidInput(f"{name} is {value}, expected 1 or more", param=name)
    from kazeia_engine import __version__
    from kazeia_engine.model import Model

    pair = find_pair(path)
    files = pair.talker.stat().st_size + pair.codec.stat().st_size
    start = time.perf_counter()
    with Model.load(path, threads=threads) as model:
        load_s = time.perf_counter() - start
        log(f"loaded {model.info.name} in {load_s:.2f} s")
        policies: dict[str, Policy] = {}
        for policy in dict.fromkeys((chunk, *_COMPARED)):
            measured = run_policy(model, policy, frames=frames, repeat=repeat)
            policies[str(policy)] = measured
            log(f"chunk {policy}: rtf {measured.rtf:.3f}, first audio {measured.ttfb_ms:.0f} ms")
        main = policies[str(chunk)].as_dict()
        rss = peak_rss_bytes()
        return {
            "rtf": main["rtf"],
            "ttfb_ms": main["ttfb_ms"],
            "stages_ms_per_frame": main["stages_ms_per_frame"],
            "rss_mb": round(rss / 1e6, 1),
            "machine": Machine.here().as_dict(),
            "model": model.info.name,
            "model_mb": round(files / 1e6, 1),
            "rss_over_model_mb": round((rss - files) / 1e6, 1),
            "formats": model.info.formats,
            "sizes": model.info.sizes,
            "load_s": round(load_s, 3),
            "frames": frames,
            "repeat": repeat,
            "chunk": chunk,
            "text_tokens": len(model.tokenize(spoken_text(model))) - _ENVELOPE,
            "chunk1_over_chunk0": round(policies["1"].wall_s / policies["0"].wall_s, 3),
            "policies": {name: policy.as_dict() for name, policy in policies.items()},
            "version": __version__,
        }


def run_policy(model: Model, chunk: str | int, *, frames: int, repeat: int) -> Policy:
    """One warming and `repeat` measured runs of a chunk policy."""
    speaker = model.info.speakers[0] if model.info.speakers else None
    options: dict[str, Any] = {
        "speaker": speaker,
        "seed": _SEED,
        "max_frames": frames,
        "chunk": chunk,
        "ignore_eos": True,
        "profile": True,
    }
    model.synthesize(spoken_text(model), **{**options, "max_frames": min(frames, 8)})
    walls: list[float] = []
    results: list[Result] = []
    for _ in range(repeat):
        start = time.perf_counter()
        results.append(model.synthesize(spoken_text(model), **options))
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
