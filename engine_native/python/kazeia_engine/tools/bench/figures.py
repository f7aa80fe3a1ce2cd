"""Measures the machine, then a model on it, and puts the figures together."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kazeia_engine.devices import Devices
from kazeia_engine.errors import EngineError, InvalidInput
from kazeia_engine.modelfiles import ModelPair, find_pair
from kazeia_engine.tools.bench import runs
from kazeia_engine.tools.bench.busy import MOST_BUSY, slowdown
from kazeia_engine.tools.bench.compare import compare, why_not
from kazeia_engine.tools.gguf_layout import (
    PartTypes,
    codec_tensors,
    nbytes,
    talker_tensors,
    tensor_type,
)
from kazeia_engine.tools.gguf_writing import Progress
from kazeia_engine.tools.machine import (
    CpuWatch,
    Machine,
    Speed,
    busy_warning,
    forget_peak_rss,
    peak_rss_bytes,
)
from kazeia_engine.tools.synth import shape_of, synth
from kazeia_engine.tools.work import Estimate, PartWork, Work, estimate

if TYPE_CHECKING:
    from kazeia_engine.model import Model

__all__ = ["Settings", "bench", "bench_synthetic", "generator", "stage_rows", "verdict"]

_COMPARED: tuple[str | int, ...] = ("auto", 1, 0)
_GENERATOR = ("talker", "cp")

Log = Callable[[str], None]
Step = Callable[[str, int, int], None]  # what is being done, steps done, steps in all


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how long.

    frames: length of every run; end-of-speech is ignored.
    chunk: the policy whose figures are the main ones; "auto", 1 and 0 are always compared.
    repeat: measured runs of everything, after one that warms up.
    threads: as many as the process may use when None.
    compare: the same files through llama.cpp, too.
    busy: so many processes beside the model, too; 0: none.
    devices: where the parts are computed; not together with compare, which is of processors.

    Raises InvalidInput for what is out of range, EngineError when llama.cpp's part is missing.
    """

    frames: int = 64
    chunk: str | int = "auto"
    repeat: int = 3
    threads: int | None = None
    compare: bool = False
    busy: int = 0
    devices: Devices = field(default_factory=Devices)

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("frames", self.frames, 1, 1 << 20),
            ("repeat", self.repeat, 1, 1 << 20),
            ("threads", 1 if self.threads is None else self.threads, 1, 1024),
            ("busy", self.busy, 0, MOST_BUSY),
        ):
            if not least <= value <= most:
                raise InvalidInput(f"{name} is {value}, expected {least}..{most}", param=name)
        if self.compare and self.devices != Devices():
            raise InvalidInput("the comparison is of the processor only", param="devices")
        if self.compare and (reason := why_not()) is not None:
            raise InvalidInput(reason, param="compare")


def bench_synthetic(
    size: str,
    settings: Settings,
    *,
    type: str = "q8_0",
    log: Log = lambda _line: None,
    step: Step = lambda _what, _done, _all: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """`bench` of random weights of a size and type, in a temporary folder that is then removed.

    progress: of the writing, as for `synth`.
    Raises InvalidInput for an unknown size or type, OSError when the disk is too small.
    """
    types = PartTypes.resolve(type)
    shape = shape_of(size.lower())
    speed = _measure_machine(settings, log)
    log(_expectation(estimate(Work.of_shape(shape, types), speed)))
    specs = [*talker_tensors(shape), *codec_tensors(shape)]
    needed = sum(nbytes(spec, tensor_type(spec, types)) for spec in specs)
    with tempfile.TemporaryDirectory(prefix="kazeia-bench-") as folder:
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise OSError(
                f"{folder} has {free / 1e9:.1f} GB free, the model needs {needed / 1e9:.1f}: "
                "name another folder by TMPDIR"
            )
        synth(Path(folder), size=size, type=type, progress=progress)
        return bench(Path(folder), settings, speed=speed, log=log, step=step)


def bench(
    path: Path,
    settings: Settings,
    *,
    speed: Speed | None = None,
    log: Log = lambda _line: None,
    step: Step = lambda _what, _done, _all: None,
) -> dict[str, Any]:
    """Measures the machine, loads a model and measures it.

    speed: of the machine; measured first when None.

    Returns, for JSON: rtf, ttfb_ms, stages_ms_per_frame (medians, of the policy `chunk`), stages
    (with bytes and operations, and their share of what the machine can do), first_audio, generator,
    estimate, verdict, rss_mb (peak, loading included), machine, and how it was measured; busy and
    compare are None unless asked for, and compare has an error when one engine failed.
    Raises InvalidInput, ModelNotFound, ModelFormatError, EngineError.
    """
    from kazeia_engine.model import Model

    pair = find_pair(path)
    work = Work.of_files(pair)
    if speed is None:
        speed = _measure_machine(settings, log)
        log(_expectation(estimate(work, speed)))
    plan = _Plan(settings, step)
    forget_peak_rss()
    watch = CpuWatch()
    plan.next("loading")
    start = time.perf_counter()
    with Model.load(path, threads=settings.threads, devices=settings.devices) as model:
        load_s = time.perf_counter() - start
        log(f"loaded {model.info.name} in {load_s:.2f} s")
        _require_fits(settings, model)
        figures = _measure_model(model, settings, work, speed, plan, log)
        figures["load_s"] = round(load_s, 3)
        figures["devices"] = settings.devices.as_dict()
        figures |= _memory(pair)
        figures["foreign_cores"] = _rounded(watch.foreign_cores())
        figures["busy"] = None
        if settings.busy:
            plan.next(f"beside {settings.busy} busy processes")
            figures["busy"] = _beside_others(model, settings, log)
        text, codebook = runs.spoken_text(model), model.info.sizes["codebook_size"]
    figures["compare"] = None
    if settings.compare:
        plan.next("llama.cpp")
        try:
            figures["compare"] = compare(
                pair,
                text,
                frames=settings.frames,
                codebook=codebook,
                threads=speed.threads,
                repeat=settings.repeat,
                log=log,
            )
        except EngineError as error:  # the other figures stand
            figures["compare"] = {"error": str(error)}
    plan.next("done")
    return figures


def stage_rows(stages: dict[str, float], work: Work, speed: Speed) -> list[dict[str, Any]]:
    """Milliseconds a frame by stage, and what that is in bytes and operations a second.

    of_1, of_n: shares of what one thread and all threads were measured to do.
    """
    counted = {"talker": work.talker, "cp": work.cp, "decoder": work.decoder}
    rows = []
    for name, ms in stages.items():
        row: dict[str, Any] = {"stage": name, "ms": round(ms, 3)}
        part = counted.get(name, PartWork(0, 0))
        if ms > 0 and part.read_bytes:
            gbs = part.read_bytes / ms / 1e6
            row["read_mb"] = round(part.read_bytes / 1e6, 3)
            row["gbs"] = _shares(gbs, speed.read_gbs_1, speed.read_gbs_n)
        if ms > 0 and part.macs:
            row["gmac"] = round(part.macs / 1e9, 6)
            row["gflops"] = _shares(part.flops / ms / 1e6, speed.gflops_1, speed.gflops_n)
        rows.append(row)
    return rows


def generator(stages: dict[str, float], passes: tuple[float, float] | None) -> dict[str, Any]:
    """The generator's milliseconds a frame, and how much they are above its bare products.

    passes: seconds of the matrix products alone of talker and code predictor, on as many threads;
    None: ggml's, not measured.
    """
    ms = sum(stages[name] for name in _GENERATOR)
    bare = None if passes is None else 1000 * sum(passes)
    return {
        "ms": round(ms, 3),
        "passes_ms": _rounded(bare, 3),
        "overhead": None if bare is None else round(ms / bare - 1, 4),
    }


def verdict(rtf: float, ttfb_ms: float) -> str:
    """What the figures mean to a listener."""
    if rtf <= 0.8:
        return (
            f"speaks {1 / rtf:.1f} times faster than real time: speech streams without gaps, "
            f"{ttfb_ms:.0f} ms after the request"
        )
    if rtf <= 1.0:
        return (
            f"speaks {1 / rtf:.2f} times faster than real time: just enough; another process, or a "
            "second listener, makes it stall"
        )
    return (
        f"speaks {rtf:.1f} times slower than real time: chunk auto will stall; a sentence of 5 s "
        f"takes {5 * rtf:.0f} s (a smaller model or fewer bits may do, see kazeia doctor)"
    )


class _Plan:
    """The steps of a benchmark, told one by one."""

    def __init__(self, settings: Settings, step: Step) -> None:
        self._policies = tuple(dict.fromkeys((settings.chunk, *_COMPARED)))
        self._all = 1 + len(self._policies) + 1 + bool(settings.busy) + settings.compare
        self._done = -1
        self._step = step

    @property
    def policies(self) -> tuple[str | int, ...]:
        """The chunk policies that are measured."""
        return self._policies

    def next(self, what: str) -> None:
        """The step before has ended, this one begins."""
        self._done += 1
        self._step(what, self._done, self._all)


def _require_fits(settings: Settings, model: Model) -> None:
    """A run that the model would cut short measures something else than was asked for."""
    most = model.most_frames(runs.spoken_text(model), speaker=model.info.first_speaker)
    if settings.frames > most:
        raise InvalidInput(
            f"frames is {settings.frames}, expected at most {most}, the positions of the model",
            param="frames",
        )


def _measure_machine(settings: Settings, log: Log) -> Speed:
    speed = Speed.measure(settings.threads)
    log(
        f"memory {speed.read_gbs_1:.1f} GB/s, {speed.threads} threads {speed.read_gbs_n:.1f}; "
        f"f32 products ({speed.kernels}) {speed.gflops_1:.1f} GFLOP/s, {speed.threads} threads "
        f"{speed.gflops_n:.1f}"
    )
    if (warning := busy_warning(speed.foreign_cores)) is not None:
        log(f"warning: {warning}")
    return speed


def _expectation(expected: Estimate) -> str:
    return (
        f"estimate: rtf {expected.rtf:.2f} (a frame: talker {expected.talker_ms:.0f} ms, code "
        f"predictor {expected.cp_ms:.0f}, decoder {expected.decoder_ms:.0f}); measuring"
    )


def _measure_model(
    model: Model, settings: Settings, work: Work, speed: Speed, plan: _Plan, log: Log
) -> dict[str, Any]:
    """Everything about the model alone."""
    from kazeia_engine import __version__

    policies: dict[str, runs.Policy] = {}
    for chunk in plan.policies:
        plan.next(f"chunk {chunk}")
        measured = runs.run_policy(model, chunk, frames=settings.frames, repeat=settings.repeat)
        policies[str(chunk)] = measured
        log(f"chunk {chunk}: rtf {measured.rtf:.3f}, first audio {measured.ttfb_ms:.0f} ms")
    plan.next("first audio")
    heard: dict[str, dict[str, Any] | None] = {}
    for layout, audio in runs.first_audio(model, repeat=settings.repeat):
        heard[layout] = None if audio is None else audio.as_dict()
        if audio is not None:
            first, again = audio.first.median, audio.cached.median
            log(f"first audio, {layout}: {first:.0f} ms, again {again:.0f} ms")
    passes = model.measure_passes(speed.threads)
    main = policies[str(settings.chunk)]
    expected = estimate(work, speed)
    return {
        "rtf": round(main.rtf, 4),
        "ttfb_ms": round(main.ttfb_ms, 1),
        "verdict": verdict(main.rtf, main.ttfb_ms),
        "stages_ms_per_frame": main.as_dict()["stages_ms_per_frame"],
        "stages": stage_rows(main.stages_ms_per_frame, work, speed),
        # With all audio at the end no decoding runs beside it: the threads are all its own.
        "generator": generator(policies["0"].stages_ms_per_frame, passes),
        "first_audio": heard,
        "policies": {name: policy.as_dict() for name, policy in policies.items()},
        "chunk1_over_chunk0": round(policies["1"].wall_s / policies["0"].wall_s, 3),
        "machine": {**Machine.here().as_dict(), "speed": speed.as_dict()},
        "estimate": {
            "rtf": round(expected.rtf, 4),
            "talker_ms": round(expected.talker_ms, 3),
            "cp_ms": round(expected.cp_ms, 3),
            "decoder_ms": round(expected.decoder_ms, 3),
            "measured_over_estimate": round(main.rtf / expected.rtf, 3),
        },
        "model": model.info.name,
        "formats": model.info.formats,
        "sizes": model.info.sizes,
        "frames": settings.frames,
        "repeat": settings.repeat,
        "chunk": settings.chunk,
        "text_tokens": len(model.tokenize(runs.spoken_text(model))) - runs.ENVELOPE,
        "version": __version__,
    }


def _memory(pair: ModelPair) -> dict[str, Any]:
    files = pair.talker.stat().st_size + pair.codec.stat().st_size
    peak = peak_rss_bytes()
    return {
        "rss_mb": round(peak / 1e6, 1),
        "model_mb": round(files / 1e6, 1),
        "rss_over_model_mb": round((peak - files) / 1e6, 1),
    }


def _beside_others(model: Model, settings: Settings, log: Log) -> dict[str, Any]:
    found = slowdown(model, settings.busy, frames=settings.frames, repeat=settings.repeat)
    log(f"beside {settings.busy} busy processes: {found['slowdown']:.2f} times as long")
    return found


def _shares(rate: float, one: float, all_threads: float) -> dict[str, float]:
    return {
        "rate": round(rate, 3),
        "of_1": round(rate / one, 4),
        "of_n": round(rate / all_threads, 4),
    }


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
