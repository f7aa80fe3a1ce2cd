"""`kazeia quantize`: a pair of GGUF files into a pair in other weight types, part by part.

What is not asked for is copied byte for byte.  Tables and heads stay at 8 bits or more in every
format (`gguf_layout.tensor_type`): a table costs memory but no time, and a head decides the code.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import InvalidInput, ModelFormatError
from kazeia_engine.modelfiles import QUANTIZATION_KEY, find_pair, read_header, read_values
from kazeia_engine.tools.encoding import decode, encode_tensor
from kazeia_engine.tools.files import folder_for, require_folder
from kazeia_engine.tools.gguf_layout import (
    TYPE_NAMES,
    PartTypes,
    TensorSpec,
    file_names,
    file_type,
    nbytes,
    plain_name,
    spec_of,
    tensor_type,
)
from kazeia_engine.tools.gguf_writing import (
    Progress,
    WrittenPair,
    fallback_notes,
    write_gguf,
)
from kazeia_engine.tools.metadata import codec_quantization, talker_quantization
from kazeia_engine.vocabulary import ModelVocabulary

__all__ = ["DECODER_FORMATS", "GENERATOR_FORMATS", "Plan", "quantize"]

GENERATOR_FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0")  # talker and code predictor
DECODER_FORMATS = ("f32", "f16")  # bf16 and q8_0 leave 24 and 20 dB

_SOURCES = ("f32", "f16", "bf16", "q8_0")
_PIECE = 1 << 22  # weights in memory at once
_NEW_KEYS = 1 << 10  # bytes, more than the keys that are added take
_WRITERS_KEYS = ("general.architecture", "general.alignment")
# A matrix that tells the type of its part.
_TELLING = {
    "talker": "blk.0.attn_q.weight",
    "cp": "a.gen.code.blk.0.attn_q.weight",
    "decoder": "a.gen.wav.dac.entry.weight",
}

Plan = list[tuple[TensorSpec, str]]  # tensors and their types


def quantize(
    source: Path,
    out: Path,
    *,
    talker_type: str | None = None,
    cp_type: str | None = None,
    decoder_type: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> WrittenPair:
    """Writes the pair `source` (as for `Model.load`) with other weight types into the folder `out`.

    talker_type, cp_type: f32, f16, bf16, q8_0 or q4_0; None: the part is copied.
    decoder_type: f32 or f16, of the codec decoder and the speaker encoder; None: copied.
    force: write over the pair of the same name in `out`, whatever its weight types.
    progress: called after each tensor with its name, the bytes done and all bytes of the file.

    The files appear in `out` when both are complete.  Raises InvalidInput for an unknown type, a
    source of fewer than 8 bits, or an `out` that holds other files; ModelNotFound and
    ModelFormatError as `find_pair`, the latter also for weights that a type cannot hold; OSError
    when the disk is full.
    """
    chosen = {
        "talker": _offered("talker", talker_type, GENERATOR_FORMATS),
        "cp": _offered("cp", cp_type, GENERATOR_FORMATS),
        "decoder": _offered("decoder", decoder_type, DECODER_FORMATS),
    }
    if not any(chosen.values()):
        raise InvalidInput("no type is given for talker, cp or decoder: nothing to do")
    pair, out = find_pair(Path(source)), Path(out)
    facts = ModelVocabulary.load(pair.talker)
    talker, codec = _Source(pair.talker), _Source(pair.codec)
    types = PartTypes(
        talker=chosen["talker"] or talker.part_type("talker"),
        cp=chosen["cp"] or codec.part_type("cp"),
        decoder=chosen["decoder"] or codec.part_type("decoder"),
    )
    parts = {part for part, type in chosen.items() if type}
    if "decoder" in parts:
        parts.add("speaker")
    jobs = (
        _Job(talker, talker.plan(types, parts), chosen["talker"], talker_quantization(types)),
        _Job(codec, codec.plan(types, parts), chosen["cp"], codec_quantization(types)),
    )
    name = plain_name(facts.name)
    names = file_names(name, types)
    _look_into(out, pair.talker.parent, name, names, force)
    _require_space(out, sum(job.nbytes for job in jobs))

    targets = (out / names[0], out / names[1])
    with folder_for(out), tempfile.TemporaryDirectory(prefix=".quantize-", dir=out) as work:
        for job, target in zip(jobs, targets, strict=True):
            job.write(Path(work) / target.name, progress)
        # Another run may have finished meanwhile: two talkers in one folder are no model.
        replaced = _look_into(out, pair.talker.parent, name, names, force)
        for target in targets:
            os.replace(Path(work) / target.name, target)
        for file in replaced - set(targets):
            file.unlink(missing_ok=True)
    changed = [entry for job in jobs for entry in job.plan if entry[0].part in parts]
    return WrittenPair(
        talker=targets[0],
        codec=targets[1],
        kind=facts.kind,
        types=types,
        talker_bytes=targets[0].stat().st_size,
        codec_bytes=targets[1].stat().st_size,
        notes=(*(note for job in jobs for note in job.notes()), *fallback_notes(changed, types)),
    )


class _Source:
    """One file of the pair that is read; its data stay on the disk until they are used.

    fields: name -> (value, its type, the type of its items), in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_header(path, arrays=True)
        self.tensors = header.tensors
        self.fields = {
            name: (value, *(None if t is None else gguf.GGUFValueType(t) for t in types))
            for (name, value), types in zip(
                header.values.items(), header.types.values(), strict=True
            )
        }

    def type(self, name: str) -> str:
        """The type a tensor has."""
        return str(gguf.GGMLQuantizationType(self.tensors[name].type).name.lower())

    def part_type(self, part: str) -> str:
        """The type of a part's matrices."""
        if _TELLING[part] not in self.tensors:
            raise ModelFormatError(f"{self.path}: tensor {_TELLING[part]} is missing")
        return self.type(_TELLING[part])

    def plan(self, types: PartTypes, parts: set[str]) -> Plan:
        """Every tensor with the type it gets; those of other parts than `parts` keep theirs."""
        plan = []
        for name, tensor in self.tensors.items():
            spec, present = spec_of(name, tensor.shape[::-1]), self.type(name)
            zeros = spec.part == "speaker" and self.key("kazeia.speaker_encoder") is False
            keep = spec.part not in parts or zeros
            wanted = present if keep else tensor_type(spec, types)
            if present not in TYPE_NAMES:
                raise ModelFormatError(f"{self.path}: tensor {name} has the unknown type {present}")
            if wanted != present and present not in _SOURCES:
                raise InvalidInput(
                    f"{self.path}: the {spec.part} has {present} weights, which have lost too much "
                    f"to be quantised again; start from {', '.join(_SOURCES)} or from the official "
                    "folder (`kazeia convert`)"
                )
            plan.append((spec, wanted))
        return plan

    def key(self, name: str) -> Any:
        """The value of a metadata key, or None."""
        return self.fields[name][0] if name in self.fields else None

    def rows(self, spec: TensorSpec, type: str) -> Iterator[npt.NDArray[Any]]:
        """The data of a tensor in a type, in pieces."""
        tensor = self.tensors[spec.name]
        stored = self.type(spec.name)
        dtype = np.dtype({"f32": np.float32, "f16": np.float16}.get(stored, np.uint8))
        width = tensor.nbytes // (spec.rows * dtype.itemsize)  # values, or bytes of blocks, a row
        step = max(1, _PIECE // spec.shape[-1])
        for at in range(0, spec.rows, step):
            count = min(step, spec.rows - at)
            offset = tensor.offset + at * width * dtype.itemsize
            rows = read_values(self.path, spec.name, dtype, offset, count * width)
            if stored == type:
                yield rows
            else:
                rows = rows.reshape(count, width)
                yield encode_tensor(spec.name, decode(rows, stored), type)


@dataclass(frozen=True, slots=True)
class _Job:
    """One file to write."""

    source: _Source
    plan: Plan
    file_type: str | None  # None: as it was
    quantization: str

    @property
    def nbytes(self) -> int:
        """An upper bound of the file's size, nearer than a page."""
        header = min((t.offset for t in self.source.tensors.values()), default=0) + _NEW_KEYS
        return header + sum(nbytes(spec, type) + 32 for spec, type in self.plan)

    def write(self, path: Path, progress: Progress | None) -> None:
        architecture = self.source.key("general.architecture")
        write_gguf(path, architecture, self._metadata, self.plan, self.source.rows, progress)

    def _metadata(self, w: gguf.GGUFWriter) -> None:
        """The keys of the source in their order, those about weight types changed."""
        string, number = gguf.GGUFValueType.STRING, gguf.GGUFValueType.UINT32
        changed: dict[str, tuple[Any, Any]] = {QUANTIZATION_KEY: (self.quantization, string)}
        if self.file_type is not None:
            changed["general.file_type"] = (file_type(self.file_type), number)
            changed["general.quantization_version"] = (gguf.GGML_QUANT_VERSION, number)
        for name, (value, kind, inner) in self.source.fields.items():
            if name in changed:
                w.add_key_value(name, *changed.pop(name))
            elif name not in _WRITERS_KEYS:
                w.add_key_value(name, value, kind, inner)
        for name, (value, kind) in changed.items():
            w.add_key_value(name, value, kind)

    def notes(self) -> list[str]:
        """Parts whose weights are rounded a second time."""
        parts = {
            spec.part: wanted
            for spec, wanted in self.plan
            if wanted != "q8_0" and self.source.type(spec.name) == "q8_0" and spec.role == "matrix"
        }
        return [
            f"the {part} goes from q8_0 to {wanted}: its first rounding stays in the weights"
            for part, wanted in parts.items()
        ]


def _offered(part: str, type: str | None, formats: Sequence[str]) -> str | None:
    if type is None:
        return None
    name = type.lower()
    if name not in formats:
        raise InvalidInput(
            f"{part} {type!r}: expected one of {', '.join(formats)}", param=f"{part}_type"
        )
    return name


def _look_into(
    out: Path, source: Path, name: str, names: tuple[str, str], force: bool
) -> set[Path]:
    """What lies in `out` already, all of it to be replaced; InvalidInput when it may not be."""
    require_folder(out)
    if out.exists() and out.samefile(source):
        raise InvalidInput(f"{out} is the folder of the model itself: give another", param="out")
    there = set(out.glob("*.gguf")) if out.exists() else set()
    # The type of the talker is part of its file's name.
    same = re.compile(rf"{re.escape(name)}-talker-[A-Z0-9_]+\.gguf")
    others = sorted(f.name for f in there if f.name not in names and not same.fullmatch(f.name))
    if others:
        raise InvalidInput(f"{out} holds another model ({', '.join(others)})", param="out")
    if there and not force:
        found = ", ".join(sorted(f.name for f in there))
        raise InvalidInput(f"{out} holds {found}: --force writes over it", param="out")
    return there


def _require_space(out: Path, needed: int) -> None:
    folder = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{folder} has {free / 1e6:.0f} MB free, the files take {needed / 1e6:.0f} MB",
        )
