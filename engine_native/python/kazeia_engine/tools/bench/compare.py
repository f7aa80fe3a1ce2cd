"""The same files, text, frames and threads through llama.cpp's own implementation.

The installed libmtmd brings it (`mtmd_helper_gen_audio`). Each run is a process of its own: the
memory and threads of one engine then cannot touch the other's, and a crash stays a message.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from kazeia_engine.errors import EngineError
from kazeia_engine.modelfiles import ModelPair
from kazeia_engine.tools.machine import CpuWatch, most_cores

__all__ = ["ENGINES", "WINDOW", "compare", "run_engine", "why_not"]

ENGINES = ("kazeia", "llama.cpp")
_CHILD = Path(__file__).with_name("child.py")
_FIGURES = ("rtf", "first_audio_s", "peak_rss_mb", "load_s")
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
WINDOW = 72  # frames that llama.cpp's decoder computes at a time, however few it is given
_STARTING_S, _SECONDS_A_FRAME = 600.0, 10.0  # what takes longer hangs


class _Crash(EngineError):
    """A process was ended by a fault of its own."""


def why_not() -> str | None:
    """What keeps this installation from the comparison; None: nothing."""
    needs = "--compare needs llama-cpp-python with libmtmd and its speech generation"
    try:
        mtmd = import_module("llama_cpp.mtmd_cpp")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"{needs}: {error}"
    if not hasattr(mtmd, "mtmd_helper_gen_audio_init"):
        return f"{needs}: this one has no mtmd_helper_gen_audio_init"
    return None


def compare(
    pair: ModelPair,
    text: str,
    *,
    frames: int,
    codebook: int,
    threads: int,
    repeat: int,
    log: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Runs both engines `repeat` times in turn: ours, theirs, ours, theirs.

    frames: rounded up to whole windows of llama.cpp's decoder; others would be unfair to it.
    codebook: entries of a codebook of the model.

    Returns "runs" (by engine, one entry a run), "medians" (by engine), "ratios" (theirs over ours:
    of the medians, and the least and greatest of all pairs), "repacked" (whether llama.cpp had its
    weights in the layout of its choice: where it crashes with them, it runs without),
    "foreign_cores" (that others kept busy in the worst run; None where unknown).
    Raises EngineError with the reason when one cannot run.
    """
    if (reason := why_not()) is not None:
        raise EngineError(reason)
    frames = -(-frames // WINDOW) * WINDOW
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    foreign = []
    repack = True

    def run(engine: str) -> dict[str, float]:
        return run_engine(
            engine, pair, text, frames=frames, codebook=codebook, threads=threads, repack=repack
        )

    for turn in range(repeat):
        for engine in ENGINES:
            watch = CpuWatch()
            try:
                figures = run(engine)
            except _Crash as crash:
                if not repack or engine == ENGINES[0]:
                    raise
                log(f"{crash}; again without repacked weights")
                repack, watch = False, CpuWatch()
                figures = run(engine)
            foreign.append(watch.foreign_cores())
            runs[engine].append(figures)
            log(f"{engine} {turn + 1}/{repeat}: rtf {figures['rtf']:.3f}")
    medians = {
        engine: {k: round(statistics.median(run[k] for run in of), 4) for k in _FIGURES}
        for engine, of in runs.items()
    }
    ours, theirs = (runs[engine] for engine in ENGINES)
    ratios = {}
    for k in _FIGURES:
        each = [b[k] / a[k] for a, b in zip(ours, theirs, strict=True)]
        ratios[k] = {
            "median": round(medians[ENGINES[1]][k] / medians[ENGINES[0]][k], 3),
            "min": round(min(each), 3),
            "max": round(max(each), 3),
        }
    return {
        "threads": threads,
        "frames": frames,
        "runs": runs,
        "medians": medians,
        "ratios": ratios,
        "repacked": repack,
        "foreign_cores": most_cores(foreign),
    }


def run_engine(
    engine: str,
    pair: ModelPair,
    text: str,
    *,
    frames: int,
    codebook: int,
    threads: int,
    repack: bool = True,
) -> dict[str, float]:
    """One run in a process of its own, after a few frames that warm up.

    repack: whether llama.cpp may rearrange weights for the processor, as it does by default.

    Returns rtf, load_s, first_audio_s, work_s, audio_s, frames, peak_rss_mb.
    Raises EngineError with the child's reason, or what ended it.
    """
    arguments: Sequence[str | Path] = (
        engine, pair.talker, pair.codec, "--text", text, "--frames", str(frames),
        "--codebook", str(codebook), "--threads", str(threads),
        *([] if repack else ["--no-repack"]),
    )  # fmt: skip
    # Ours sets it for itself; llama.cpp runs as it would alone.
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    try:
        done = subprocess.run(
            [sys.executable, _CHILD, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_STARTING_S + frames * _SECONDS_A_FRAME,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"the comparison: {engine} took more than {error.timeout:.0f} s"
        ) from None
    return _figures(engine, done)


def _figures(engine: str, done: subprocess.CompletedProcess[bytes]) -> dict[str, float]:
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = {}
    if done.returncode != 0 or "work_s" not in answer:
        reason = answer.get("error") or _ending(done)
        kind = _Crash if -done.returncode in _CRASHES else EngineError
        raise kind(f"the comparison: {engine} failed: {reason}")
    figures = {name: float(value) for name, value in answer.items()}
    return {"rtf": figures["work_s"] / figures["audio_s"], **figures}


def _ending(done: subprocess.CompletedProcess[bytes]) -> str:
    """How a process ended that left no word of its own."""
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode < 0:
        how = f"ended by {signal.Signals(-done.returncode).name}"
    else:
        how = f"exit code {done.returncode}, no figures"
    return f"{how}; {said[-1]}" if said else how
