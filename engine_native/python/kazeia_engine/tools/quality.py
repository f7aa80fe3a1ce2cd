"""`kazeia quality`: how near a pair in other weight types stays to its reference.

Both models take the same steps: codes that the reference sampled are forced on the other, and the
distributions of the next code are compared frame by frame and codebook by codebook (teacher
forcing).  The code predictor works on the talker's hidden state, so its figures include what the
talker's weights change.  The decoder is compared by its audio for the same codes.

The models are loaded one after the other; the reference's logits are kept meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import InvalidInput, ModelFormatError
from kazeia_engine.modelfiles import find_pair, read_header
from kazeia_engine.tools.metadata import SYNTHETIC_KEY
from kazeia_engine.vocabulary import ModelVocabulary

if TYPE_CHECKING:
    from kazeia_engine.model import Model, Precision
    from kazeia_engine.options import SpeechOptions
    from kazeia_engine.types import ModelInfo

__all__ = [
    "MAX_SNR",
    "TEXTS",
    "Divergence",
    "Limits",
    "compare_logits",
    "decoder_codes",
    "quality",
    "signal_to_noise",
]

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "At half past nine, she asked: is anybody there?",
    "Le vent du nord souffle sur la mer, et le phare attend.",
    "Morgen wird es regnen, sagte der alte Mann leise.",
)
MAX_SNR = 150.0  # dB; what f32 audio could hold at most, said of equal audio
_SEED = 1
_TOP = 5
_SAME = (
    "talker_hidden",
    "talker_layers",
    "cp_hidden",
    "cp_layers",
    "text_vocab",
    "codec_vocab",
    "n_codebooks",
    "codebook_size",
)
_RANDOM_WEIGHTS = (
    "these are random weights: the figures show that the formats work, and say nothing about the "
    "agreement of a trained model"
)
_EIGHT_BITS_UP = ("f32", "f16", "bf16", "q8_0")

Log = Callable[[str], None]
_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]
_Codes = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the gate asks for; None: by the model's weight type.

    Published agreements, with teacher forcing: talker 97 % at 8 bits and 84 to 90 % at 4; code
    predictor 79 and 46 to 53 %.  The defaults leave a few points for the sample: 95 and 80 % for
    the talker, 75 and 40 % for the code predictor.

    Raises InvalidInput for what is no number of dB or no share.
    """

    snr: float = 35.0  # dB, the decoder's on each sequence of codes
    talker: float | None = None  # agreement on the likeliest code, 0..1
    cp: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.snr <= MAX_SNR:
            raise InvalidInput(f"min_snr is {self.snr:g}, expected 0..{MAX_SNR:g} dB", param="snr")
        for name, share in (("talker", self.talker), ("cp", self.cp)):
            if share is not None and not 0 <= share <= 1:
                raise InvalidInput(f"min_{name} is {share:g}, expected 0..1", param=name)

    def resolved(self, formats: dict[str, str]) -> Limits:
        """The limits for a model with these weight types."""
        eight = {part: formats[part] in _EIGHT_BITS_UP for part in ("talker", "cp")}
        talker = (0.95 if eight["talker"] else 0.80) if self.talker is None else self.talker
        cp = (0.75 if eight["cp"] else 0.40) if self.cp is None else self.cp
        return Limits(self.snr, talker, cp)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Differences of two models' distributions over a number of choices."""

    choices: int
    kl_mean: float  # Kullback-Leibler divergence from the reference, nats
    kl_p99: float
    kl_max: float
    top1: float  # share of choices whose likeliest code is the same
    top5: float  # mean share of the reference's five likeliest codes among the other's five


@dataclass(frozen=True, slots=True)
class _Choices:
    """The same measures choice by choice, each [n]."""

    kl: _Doubles
    top1: _Doubles
    top5: _Doubles


@dataclass(frozen=True, slots=True)
class _Run:
    """A text as the reference spoke it."""

    text: str
    options: SpeechOptions
    codes: _Codes  # [n, 16]
    talker: _Floats  # logits [n, codec vocabulary]
    cp: _Floats  # logits [n, 15, codebook size]


@dataclass(frozen=True, slots=True)
class _Recording:
    """What is kept of the reference when it is closed."""

    info: ModelInfo
    allowed: npt.NDArray[np.int64]  # ids the talker may draw
    runs: list[_Run]
    codes: dict[str, _Codes]  # sequence -> [n, 16], for the decoder
    pcm: dict[str, _Floats]


def quality(
    path: Path,
    reference: Path,
    *,
    frames: int = 32,
    texts: Sequence[str] = TEXTS,
    speaker: str | None = None,
    threads: int | None = None,
    precision: Precision = "f32",
    limits: Limits | None = None,
    log: Log = lambda _line: None,
) -> dict[str, Any]:
    """Compares the pair `path` with the pair `reference`; both as for `Model.load`.

    frames: of each text, and of each sequence of codes for the decoder.
    precision: in which the reference computes; "f32" dequantises its weights.
    speaker: of all runs; None: the model's first, if it has any.

    Returns for JSON: talker, cp and codebooks (each a Divergence), decoder (dB by sequence),
    bytes, formats, limits, failures (empty when the gate is passed), notes.
    Raises InvalidInput for fewer than 2 frames, no text, or two models that are not the same one;
    ModelNotFound, ModelFormatError.
    """
    if frames < 2:
        raise InvalidInput(f"frames is {frames}, expected 2 or more", param="frames")
    if not texts:
        raise InvalidInput("texts are empty", param="texts")
    pairs = {"model": find_pair(path), "reference": find_pair(reference)}
    from kazeia_engine.model import Model

    with Model.load(reference, threads=threads, precision=precision) as model:
        eos = ModelVocabulary.load(pairs["reference"].talker).codec.eos
        recording = _record(model, eos, texts, frames, speaker, log)
    with Model.load(path, threads=threads) as model:
        log(f"model: {_formats(model)}")
        _require_same(model.info, recording.info)
        codebooks = _follow(model, recording)
        decoder = {
            name: signal_to_noise(recording.pcm[name], model.decode(codes))
            for name, codes in recording.codes.items()
        }
        formats = model.info.formats

    talker, cp = _divergence(codebooks[:1]), _divergence(codebooks[1:])
    chosen = (limits or Limits()).resolved(formats)
    synthetic = read_header(pairs["reference"].talker).values.get(SYNTHETIC_KEY) is True
    return {
        "model": recording.info.name,
        "formats": formats,
        "reference_formats": recording.info.formats,
        "bytes": {
            name: {"talker": p.talker.stat().st_size, "codec": p.codec.stat().st_size}
            for name, p in pairs.items()
        },
        "frames": sum(len(run.codes) for run in recording.runs),
        "talker": asdict(talker),
        "cp": asdict(cp),
        "codebooks": [asdict(_divergence([choices])) for choices in codebooks],
        "decoder": decoder,
        "limits": asdict(chosen),
        "failures": _failures(talker, cp, decoder, chosen),
        "notes": [_RANDOM_WEIGHTS] if synthetic else [],
    }


def decoder_codes(frames: int, codebooks: int, size: int) -> dict[str, _Codes]:
    """Seeded sequences [frames, codebooks] of codes below `size`.

    random: every code anew.  slow: one codebook, drawn anew, changes each frame, so that the audio
    is steady and errors that lie in one direction add up.
    """
    rng = np.random.default_rng(_SEED)
    random = rng.integers(0, size, (frames, codebooks), dtype=np.int32)
    slow = np.repeat(random[:1], frames, axis=0)
    for i in range(1, frames):
        slow[i:, rng.integers(codebooks)] = rng.integers(size)
    return {"random": random, "slow": slow}


def compare_logits(reference: _Floats, other: _Floats) -> Divergence:
    """Divergence of the softmax distributions of two arrays of logits [n, ids]."""
    return _divergence([_compare(reference, other)])


def signal_to_noise(reference: _Floats, other: _Floats) -> float:
    """Signal-to-noise ratio of `other` in dB, at most MAX_SNR.

    Raises ModelFormatError for a reference that is silent.
    """
    signal = float(np.sum(np.square(reference, dtype=np.float64)))
    noise = float(np.sum(np.square(reference.astype(np.float64) - other)))
    if not signal > 0:
        raise ModelFormatError("the reference decodes to silence: nothing to compare with")
    return min(MAX_SNR, 10 * math.log10(signal / noise)) if noise else MAX_SNR


def _record(
    model: Model, eos: int, texts: Sequence[str], frames: int, speaker: str | None, log: Log
) -> _Recording:
    log(f"reference: {_formats(model)}")
    if speaker is None:
        speaker = model.info.first_speaker
    runs = []
    for i, text in enumerate(texts):
        options: SpeechOptions = {"seed": _SEED + i, "speaker": speaker}
        trace = model.trace(text, frames=frames, **options)
        n = len(trace["codes"])
        if not n:
            raise ModelFormatError(f"the reference says nothing to {text!r}")
        log(f"{n} frames of {text!r}")
        logits = trace["talker_logits"][:n], trace["cp_logits"]
        runs.append(_Run(text, options, trace["codes"], *logits))
    books, size = model.info.sizes["n_codebooks"], model.info.sizes["codebook_size"]
    codes = decoder_codes(frames, books, size)
    codes["spoken"] = np.concatenate([run.codes for run in runs])[:frames]
    return _Recording(
        info=model.info,
        allowed=np.array([*range(size), eos]),
        runs=runs,
        codes=codes,
        pcm={name: model.decode(c) for name, c in codes.items()},
    )


def _follow(model: Model, recording: _Recording) -> list[_Choices]:
    """The choices of the model along the recorded codes, by codebook."""
    traces = [
        model.trace(run.text, frames=len(run.codes), force_codes=run.codes, **run.options)
        for run in recording.runs
    ]
    runs, allowed = recording.runs, recording.allowed
    talker = np.concatenate([run.talker for run in runs])
    other = np.concatenate([trace["talker_logits"] for trace in traces])
    expected_cp = np.concatenate([run.cp for run in runs])
    cp = np.concatenate([trace["cp_logits"] for trace in traces])
    return [
        _compare(talker[:, allowed], other[:, allowed]),
        *(_compare(expected_cp[:, i], cp[:, i]) for i in range(cp.shape[1])),
    ]


def _compare(reference: _Floats, other: _Floats) -> _Choices:
    p, q = _log_softmax(reference), _log_softmax(other)
    kl = np.sum(np.exp(p) * (p - q), axis=1)
    likely = np.argpartition(p, -_TOP, axis=1)[:, -_TOP:]
    taken = np.argpartition(q, -_TOP, axis=1)[:, -_TOP:]
    shared = (likely[:, :, None] == taken[:, None, :]).any(axis=2)
    return _Choices(
        kl=np.maximum(kl, 0.0),  # rounding can take it just below
        top1=(p.argmax(axis=1) == q.argmax(axis=1)).astype(np.float64),
        top5=shared.mean(axis=1, dtype=np.float64),
    )


def _log_softmax(logits: _Floats) -> _Doubles:
    x: _Doubles = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def _divergence(parts: Sequence[_Choices]) -> Divergence:
    kl = np.concatenate([part.kl for part in parts])
    return Divergence(
        choices=len(kl),
        kl_mean=float(kl.mean()),
        kl_p99=float(np.percentile(kl, 99)),
        kl_max=float(kl.max()),
        top1=float(np.concatenate([part.top1 for part in parts]).mean()),
        top5=float(np.concatenate([part.top5 for part in parts]).mean()),
    )


def _failures(
    talker: Divergence, cp: Divergence, decoder: dict[str, float], limits: Limits
) -> list[str]:
    """What lies below its limit; a NaN does."""
    found = []
    for name, got, limit in (
        ("talker", talker.top1, limits.talker),
        ("code predictor", cp.top1, limits.cp),
    ):
        if limit is not None and not got >= limit:
            found.append(f"the {name} agrees on {got:.1%} of its codes, expected {limit:.0%}")
    for name, snr in decoder.items():
        if not snr >= limits.snr:
            found.append(f"decoder, {name} codes: {snr:.1f} dB, expected {limits.snr:g} dB")
    return found


def _require_same(info: ModelInfo, reference: ModelInfo) -> None:
    for name in _SAME:
        got, expected = info.sizes[name], reference.sizes[name]
        if got != expected:
            raise InvalidInput(
                f"{name} is {got} in the model and {expected} in the reference: "
                "these are not two formats of one model",
                param="reference",
            )
    if info.kind != reference.kind:
        raise InvalidInput(
            f"the model is a {info.kind}, the reference a {reference.kind}: these are not two "
            "formats of one model",
            param="reference",
        )


def _formats(model: Model) -> str:
    return ", ".join(f"{part} {type}" for part, type in model.info.formats.items())
