"""What one frame of 80 ms costs: weights to read and multiplications, by part of a model.

Counted from the shapes of a model's tensors. Attention over the cached keys, norms and activations
are left out: some percent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kazeia_engine.errors import ModelFormatError
from kazeia_engine.modelfiles import ModelPair, read_header
from kazeia_engine.tools.gguf_layout import (
    ModelShape,
    PartTypes,
    codec_tensors,
    nbytes,
    talker_tensors,
    tensor_type,
)
from kazeia_engine.tools.machine import Speed

__all__ = ["FRAMES_PER_SECOND", "Estimate", "PartWork", "Work", "estimate"]

FRAMES_PER_SECOND = 12.5

_CP, _WAV = "a.gen.code.", "a.gen.wav."
_BLOCK = re.compile(r"(up|dac)\.blk\.(\d+)\.(.*)")

# Name -> (shape in ggml order, bytes)
_Tensors = Mapping[str, tuple[tuple[int, ...], int]]


@dataclass(frozen=True, slots=True)
class PartWork:
    """Of one part for one frame.

    read_bytes: weights read from memory, as the file stores them; 0 for the decoder, which
        multiplies each weight with many steps and is not bound by reading.
    macs: multiplications with weights.
    """

    read_bytes: int
    macs: int

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition each."""
        return 2 * self.macs


@dataclass(frozen=True, slots=True)
class Work:
    """Of one frame."""

    talker: PartWork
    cp: PartWork
    decoder: PartWork

    @classmethod
    def of_files(cls, pair: ModelPair) -> Work:
        """Of a model's files; only their headers are read. Raises ModelFormatError."""
        tensors = {}
        try:
            for path in (pair.talker, pair.codec):
                for name, tensor in read_header(path).tensors.items():
                    tensors[name] = (tensor.shape, tensor.nbytes)
            return cls._of(tensors)
        except (LookupError, ValueError) as error:
            names = f"{pair.talker}, {pair.codec}"
            raise ModelFormatError(
                f"{names}: not the tensors of a Qwen3-TTS model: {error}"
            ) from error

    @classmethod
    def of_shape(cls, shape: ModelShape, types: PartTypes) -> Work:
        """Of a model that is not there, in these weight types."""
        specs = [*talker_tensors(shape), *codec_tensors(shape)]
        sized = {s.name: (s.shape[::-1], nbytes(s, tensor_type(s, types))) for s in specs}
        return cls._of(sized)

    @classmethod
    def _of(cls, tensors: _Tensors) -> Work:
        matrices = {name: t for name, t in tensors.items() if len(t[0]) > 1}
        return cls(_talker(matrices), _code_predictor(matrices), _decoder(matrices))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Milliseconds a frame of each part on all threads at full speed, and what follows."""

    talker_ms: float
    cp_ms: float
    decoder_ms: float

    @property
    def rtf(self) -> float:
        """Work seconds a second of speech."""
        return (self.talker_ms + self.cp_ms + self.decoder_ms) * FRAMES_PER_SECOND / 1000


def estimate(work: Work, speed: Speed) -> Estimate:
    """The time of a frame from what the machine was measured to do.

    Each part takes the longer of reading its weights and of its multiplications at the speed of
    f32 products; the parts add up, for they share the same threads. Caches that hold the code
    predictor and products of fewer bits make a machine faster than this, everything between the
    products makes it slower.
    """

    def ms(part: PartWork) -> float:
        return max(part.read_bytes / speed.read_gbs_n, part.flops / speed.gflops_n) / 1e6

    return Estimate(ms(work.talker), ms(work.cp), ms(work.decoder))


def _sum(
    parts: Iterable[tuple[tuple[int, ...], int]], bytes_times: int, macs_times: int
) -> PartWork:
    shapes, sizes = zip(*parts, strict=True)
    return PartWork(sum(sizes) * bytes_times, sum(map(math.prod, shapes)) * macs_times)


def _talker(tensors: _Tensors) -> PartWork:
    """One position: its layers and the head; of the embedding only rows are read."""
    used = (t for name, t in tensors.items() if name.startswith("blk.") or name == "output.weight")
    return _sum(used, 1, 1)


def _code_predictor(tensors: _Tensors) -> PartWork:
    """As many passes as heads, the first with two positions; each head once."""
    heads = tensors[f"{_CP}head.weight"]
    passes = heads[0][2]
    body = _sum(
        (t for n, t in tensors.items() if n.startswith((f"{_CP}blk.", f"{_CP}proj_in."))),
        passes,
        passes + 1,
    )
    return PartWork(body.read_bytes + heads[1], body.macs + math.prod(heads[0]))


def _decoder(tensors: _Tensors) -> PartWork:
    shapes = {n.removeprefix(_WAV): s for n, (s, _) in tensors.items() if n.startswith(_WAV)}
    strides: dict[str, list[int]] = {}
    for part, divisor in (("up", 1), ("dac", 2)):  # kernel sizes in strides
        convs = [
            shapes[n] for i in range(len(shapes)) if (n := f"{part}.blk.{i}.conv.weight") in shapes
        ]
        strides[part] = [shape[0] // divisor for shape in convs]
    macs = sum(math.prod(s) * _steps(n, strides["up"], strides["dac"]) for n, s in shapes.items())
    return PartWork(0, macs)


def _steps(name: str, up: list[int], dac: list[int]) -> int:
    """How often a frame is multiplied with a tensor of the decoder."""
    if name.endswith(("codebook.weight", "in_proj.weight")) and name.startswith("quant."):
        return 0  # rows of codebooks are added up
    if name == "dac.entry.weight":
        return math.prod(up)
    if name == "dac.post_conv.weight":
        return math.prod(up) * math.prod(dac)
    if (match := _BLOCK.fullmatch(name)) is None:
        return 1
    before = up if match[1] == "up" else dac
    index = int(match[2])
    done = (
        index if match[3] == "conv.weight" else index + 1
    )  # a transposed conv runs before its stride
    return math.prod(before[:done]) * (1 if match[1] == "up" else math.prod(up))
