"""Writing a GGUF file tensor by tensor, and the folder it goes into."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from kazeia_engine.tools.gguf_layout import TensorSpec, nbytes

__all__ = ["Progress", "folder_for", "write_gguf"]

Progress = Callable[[str, int, int], None]  # (tensor, bytes done, bytes in all)


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Callable[[gguf.GGUFWriter], None],
    tensors: Sequence[tuple[TensorSpec, str]],
    rows: Callable[[TensorSpec, str], Iterable[npt.NDArray[Any]]],
    progress: Progress | None = None,
) -> int:
    """Writes one file, tensor by tensor; returns its size in bytes.

    rows: yields a tensor's encoded data in order, in pieces of any size.  The file appears under
    its name only when it is complete.
    """
    partial = path.with_name(path.name + ".partial")
    total = sum(nbytes(spec, type) for spec, type in tensors)
    writer = gguf.GGUFWriter(str(partial), architecture)
    try:
        metadata(writer)
        for spec, type in tensors:
            writer.add_tensor_info(
                spec.name,
                spec.shape,
                np.dtype(np.float32),
                nbytes(spec, type),
                gguf.GGMLQuantizationType[type.upper()],
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = 0
        for spec, type in tensors:
            done += _write_tensor(writer, spec, type, rows(spec, type))
            if progress is not None:
                progress(spec.name, done, total)
        writer.close()
        os.replace(partial, path)
    except OSError as error:
        if error.filename is not None:  # it is told already
            raise
        raise OSError(error.errno, f"cannot write {path}: {error.strerror or error}") from error
    finally:
        writer.close()
        partial.unlink(missing_ok=True)
    return path.stat().st_size


@contextmanager
def folder_for(out: Path) -> Iterator[None]:
    """`out` exists within the block; when that fails, what was made of it is gone again."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # it was not made, or somebody else has put something there
                folder.rmdir()
        raise


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
