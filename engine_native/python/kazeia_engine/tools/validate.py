"""`kazeia validate`: the promises that hold for every model, checked on one.

The code predictor's cache changes no code; a seed fixes the utterance; chunks, neighbours and the
way of decoding change nothing one can hear.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import InvalidInput

if TYPE_CHECKING:
    from kazeia_engine.model import Model
    from kazeia_engine.types import Result

__all__ = [
    "MAX_LOGITS_DIFFERENCE",
    "MAX_PCM_DIFFERENCE",
    "Check",
    "compare_codes",
    "compare_logits",
    "compare_pcm",
    "validate",
]

# The same products summed in another order; the project's promise for f32, far below one 16-bit
# step's audibility.
MAX_PCM_DIFFERENCE = 1e-4
# ggml multiplies the many rows of a recomputation with other kernels than the one row of a cached
# pass, and the next layer rounds the difference to 8 bits: 1.4 % with q5_K.  A row that belongs to
# another code differs by some 100 %.
MAX_LOGITS_DIFFERENCE = 0.05
_TEXT = "The quick brown fox jumps over the lazy dog."
_SEED = 7
_CHUNKS: tuple[Any, ...] = (0, 1, 4)
_DECODES = (1, 3, 7)


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and what was found."""

    name: str
    passed: bool
    detail: str


def validate(model: Model, *, frames: int = 33, speaker: str | None = None) -> Iterator[Check]:
    """Runs the checks one after another, each yielded when it is done.

    frames: length of each run, 80 ms a frame; 33 frames are 495 codes of the code predictor.
    speaker: of the runs; None: the model's first, if it has any.

    Raises InvalidInput for fewer than 2 frames.
    """
    if frames < 2:
        raise InvalidInput(f"frames is {frames}, expected 2 or more", param="frames")
    if speaker is None:
        speaker = model.info.first_speaker

    def run(**changed: Any) -> Result:
        options = {"seed": _SEED, "chunk": 0, "max_frames": frames, "ignore_eos": True, **changed}
        return model.synthesize(_TEXT, speaker=speaker, **options)

    base = run()
    for name, settings in (
        ("code predictor, cached = recomputed", {}),
        ("the same, greedy", {"temperature": 0.0, "cp_temperature": 0.0}),
    ):
        options = {"seed": _SEED, "speaker": speaker, "ignore_eos": True, **settings}
        cached, recomputed = run(**settings), run(**settings, cp_cache=False)
        check = compare_codes(name, cached.codes, recomputed.codes, 1)
        if not check.passed and model.measure_passes(1) is None:
            check = _compare_predictors(check, model, cached.codes, options)
        yield check

    yield from _reproducible(base, run(), run(seed=_SEED + 1))

    for chunk in ("auto", *_CHUNKS[1:]):
        streamed = run(chunk=chunk)
        yield compare_codes(f"codes in chunks of {chunk} = in one", streamed.codes, base.codes)
        yield compare_pcm(f"audio in chunks of {chunk} = in one", streamed.pcm, base.pcm)

    yield compare_pcm("decode(codes) = audio of the run", model.decode(base.codes), base.pcm)
    for chunk in _DECODES:
        decoded = model.decode(base.codes, chunk=chunk)
        yield compare_pcm(f"decode in chunks of {chunk} = at once", decoded, base.pcm)

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda seed: run(seed=seed, chunk=1), (_SEED, _SEED + 1)))
    yield compare_codes("beside another stream = alone", together[0].codes, base.codes)


def compare_codes(
    name: str,
    actual: npt.NDArray[np.int32],
    expected: npt.NDArray[np.int32],
    first_codebook: int = 0,
) -> Check:
    """Exact comparison of codes [T, 16], from `first_codebook` on: "495/495 codes match".

    Frames that only one side has count as differences, and so does an empty run.
    """
    n = max(len(actual), len(expected))
    common = min(len(actual), len(expected))
    width = expected.shape[1] - first_codebook
    equal = actual[:common, first_codebook:] == expected[:common, first_codebook:]
    matching, total = int(equal.sum()), n * width
    detail = f"{matching}/{total} codes match"
    if matching < total:
        rows = np.flatnonzero(~equal.all(axis=1))
        detail += f"; first difference in frame {rows[0] if len(rows) else common}"
    return Check(name, 0 < total == matching, detail)


def compare_logits(
    name: str, actual: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]
) -> Check:
    """Logits [..., ids] row by row: norm of the difference over norm of what is expected.

    The greatest of them against MAX_LOGITS_DIFFERENCE; NaN never passes.
    """
    if actual.shape != expected.shape or not actual.size:
        return Check(name, False, f"logits {actual.shape}, expected {expected.shape}")
    difference = np.linalg.norm(actual.astype(np.float64) - expected, axis=-1)
    worst = float((difference / np.linalg.norm(expected.astype(np.float64), axis=-1)).max())
    return Check(name, worst <= MAX_LOGITS_DIFFERENCE, f"logits differ by at most {worst:.1%}")


def compare_pcm(
    name: str, actual: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]
) -> Check:
    """Greatest difference of two waveforms, against MAX_PCM_DIFFERENCE; NaN never passes."""
    if len(actual) != len(expected) or not len(expected):
        return Check(name, False, f"{len(actual)} samples, expected {len(expected)}")
    difference = np.abs(actual.astype(np.float64) - expected)
    worst = float(difference.max())
    detail = f"max |difference| {worst:.1e} over {len(expected)} samples"
    passed = worst <= MAX_PCM_DIFFERENCE
    if not passed:
        at = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
        detail += f", at sample {at}: {actual[at]:.6f}, expected {expected[at]:.6f}"
    return Check(name, passed, detail)


def _compare_predictors(
    exact: Check, model: Model, codes: npt.NDArray[np.int32], options: dict[str, Any]
) -> Check:
    """The cached and the recomputing code predictor of a model that ggml multiplies.

    Along the same codes, for one code that rounding decides changes all that follow it.
    """
    cached, recomputed = (
        model.trace(_TEXT, frames=len(codes), force_codes=codes, cp_cache=cp_cache, **options)
        for cp_cache in (True, False)
    )
    check = compare_logits(exact.name, cached["cp_logits"], recomputed["cp_logits"])
    rounding = "ggml's products round otherwise for other numbers of rows"
    return Check(check.name, check.passed, f"{exact.detail}; {rounding}: {check.detail}")


def _reproducible(base: Result, again: Result, other: Result) -> Iterator[Check]:
    yield compare_codes("the same seed, the same codes", again.codes, base.codes)
    differing = int((base.codes != other.codes).sum())
    yield Check("another seed, other codes", differing > 0, f"{differing} codes differ")
    finite = bool(np.isfinite(base.pcm).all() and np.abs(base.pcm).max() <= 1.0)
    yield Check("audio is finite and within -1..1", finite, f"{len(base.pcm)} samples")
