"""Writing a pair of GGUF files tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from kazeia_engine.tools.files import folder_for, whole_file
from kazeia_engine.tools.gguf_layout import (
    ModelShape,
    PartTypes,
    TensorSpec,
    codec_tensors,
    file_names,
    nbytes,
    talker_tensors,
    tensor_type,
)
from kazeia_engine.tools.metadata import ModelFacts, Vocabulary, codec_metadata, talker_metadata
from kazeia_engine.types import ModelKind

__all__ = [
    "Progress",
    "WrittenPair",
    "fallback_notes",
    "write_gguf",
    "write_pair",
]

Progress = Callable[[str, int, int], None]  # (tensor, bytes done, bytes in all)
Rows = Callable[[TensorSpec, str], Iterable[npt.NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class WrittenPair:
    """What was written."""

    talker: Path
    codec: Path
    kind: ModelKind
    types: PartTypes
    talker_bytes: int
    codec_bytes: int
    notes: tuple[str, ...] = ()  # tensors that could not take the wanted type


def write_pair(
    out: Path,
    facts: ModelFacts,
    shape: ModelShape,
    vocabulary: Vocabulary,
    types: PartTypes,
    rows: Rows,
    progress: Progress | None,
) -> WrittenPair:
    """Writes both files of a model into the folder `out`; rows and progress as in `write_gguf`."""
    talker = [(spec, tensor_type(spec, types)) for spec in talker_tensors(shape)]
    codec = [(spec, tensor_type(spec, types)) for spec in codec_tensors(shape)]
    files = [out / name for name in file_names(facts.name, types)]

    def about_talker(w: gguf.GGUFWriter) -> None:
        talker_metadata(w, facts, shape, vocabulary, types)

    def about_codec(w: gguf.GGUFWriter) -> None:
        codec_metadata(w, facts, shape, types)

    with folder_for(out):
        sizes = (
            write_gguf(files[0], "qwen3tts", about_talker, talker, rows, progress),
            write_gguf(files[1], "clip", about_codec, codec, rows, progress),
        )
    notes = fallback_notes((*talker, *codec), types)
    return WrittenPair(files[0], files[1], facts.kind, types, sizes[0], sizes[1], notes)


def fallback_notes(tensors: Iterable[tuple[TensorSpec, str]], types: PartTypes) -> tuple[str, ...]:
    """What to tell about matrices whose rows do not divide into blocks of the wanted type."""
    counts: dict[tuple[str, str, int], int] = {}
    for spec, got in tensors:
        if spec.role in ("matrix", "down") and spec.part != "speaker":
            wanted = {"talker": types.talker, "cp": types.cp, "decoder": types.decoder}[spec.part]
            if got != wanted:
                key = (spec.part, got, spec.shape[-1])
                counts[key] = counts.get(key, 0) + 1
    return tuple(
        f"{n} {part} matrices with rows of {width} are stored as {got}"
        for (part, got, width), n in counts.items()
    )


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Callable[[gguf.GGUFWriter], None],
    tensors: Sequence[tuple[TensorSpec, str]],
    rows: Rows,
    progress: Progress | None = None,
) -> int:
    """Writes one file, tensor by tensor; returns its size in bytes.

    rows: yields a tensor's encoded data in order, in pieces of any size.  The file appears under
    its name only when it is complete.
    """
    total = sum(nbytes(spec, type) for spec, type in tensors)
    try:
        with whole_file(path) as partial:
            writer = gguf.GGUFWriter(str(partial), architecture)
            try:
                _write(writer, metadata, tensors, rows, total, progress)
            finally:
                writer.close()
    except OSError as error:
        if error.filename is not None:  # it is told already
            raise
        raise OSError(error.errno, f"cannot write {path}: {error.strerror or error}") from error
    return path.stat().st_size


def _write(
    writer: gguf.GGUFWriter,
    metadata: Callable[[gguf.GGUFWriter], None],
    tensors: Sequence[tuple[TensorSpec, str]],
    rows: Rows,
    total: int,
    progress: Progress | None,
) -> None:
    metadata(writer)
    for spec, type in tensors:
        kind = gguf.GGMLQuantizationType[type.upper()]
        writer.add_tensor_info(
            spec.name, spec.shape, np.dtype(np.float32), nbytes(spec, type), kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    done = 0
    for spec, type in tensors:
        done += _write_tensor(writer, spec, type, rows(spec, type))
        if progress is not None:
            progress(spec.name, done, total)


def _write_tensor(
    writer: gguf.GGUFWriter, spec: TensorSpec, type: str, pieces: Iterable[npt.NDArray[Any]]
) -> int:
    assert writer.fout is not None
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    written = 0
    for piece in pieces:
        out.write(np.ascontiguousarray(piece).view(np.uint8).data)
        written += piece.nbytes
    expected = nbytes(spec, type)
    if written != expected:
        raise AssertionError(f"{spec.name}: {written} bytes written, expected {expected}")
    writer.write_padding(out, written)
    return written
