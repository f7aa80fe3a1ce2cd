"""Finding the pair of files that make up a model, by what the files say they are.

Only headers are read, so this takes the same short time for files of any size.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import ModelFormatError, ModelNotFound

__all__ = [
    "QUANTIZATION_KEY",
    "TYPE_SIZES",
    "GgufHeader",
    "GgufTensor",
    "ModelPair",
    "find_pair",
    "read_header",
    "read_values",
]

QUANTIZATION_KEY = "kazeia.quantization"  # of either file: its weight types, for people

# ggml's number of a weight type -> (weights, bytes) of a block.  The package gguf has them,
# too, but its import takes longer than that of this one.
TYPE_SIZES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18),
}  # fmt: skip

_TALKER, _CODEC = "qwen3tts", "clip"
_ROLES = {_TALKER: "talker", _CODEC: "codec"}
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 1 << 16  # keys or tensors; a model has a few hundred
_MAX_NESTING = 4
_MAX_HEADER = 1 << 28  # bytes; a header with the true vocabulary has six million
_PIECE = 1 << 20  # bytes read at once


@dataclass(frozen=True, slots=True)
class ModelPair:
    """The two files of a model."""

    talker: Path
    codec: Path


class GgufTensor(NamedTuple):
    """A tensor as the header names it."""

    shape: tuple[int, ...]  # in ggml's order
    type: int  # a key of TYPE_SIZES
    offset: int  # bytes from the beginning of the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What stands before the data of a GGUF file.

    values: scalar and string keys, arrays too where they were asked for.
    types: key -> (type, type of the elements or None), GGUFValueType.
    """

    architecture: str
    values: dict[str, Any]
    types: dict[str, tuple[int, int | None]]
    tensors: dict[str, GgufTensor]


def find_pair(path: Path | str) -> ModelPair:
    """The talker and the codec file of a folder, or of the folder a talker file lies in.

    A talker file picks the codec file beside it whose width fits, and among several of those the
    one whose name shares the longest beginning with its own.

    Raises ModelNotFound when the path, or one file of the pair, does not exist; ModelFormatError
    when a file is empty, truncated or no part of a Qwen3-TTS model, or when the choice is unclear.
    """
    path = Path(path)
    if path.is_dir():
        return _find_in_folder(path)
    if not path.exists():
        raise ModelNotFound(f"{path} does not exist; expected a model folder or a talker file")
    header = read_header(path)
    if header.architecture == _CODEC:
        raise ModelFormatError(f"{path} is a codec file; give the folder or the talker file")
    if header.architecture != _TALKER:
        raise ModelFormatError(
            f"{path} is a model of architecture {header.architecture!r}, expected {_TALKER!r}"
        )
    codecs, damaged = _scan(path.parent, _CODEC)
    codecs = [c for c in codecs if _fits(header, c[1])]
    if not codecs:
        _raise_first(damaged)
        raise ModelNotFound(
            f"{path} has no fitting codec file beside it (general.architecture = {_CODEC!r})"
        )
    return ModelPair(path, _closest(path, [c for c, _ in codecs]))


def _find_in_folder(folder: Path) -> ModelPair:
    talkers, damaged = _scan(folder, _TALKER)
    codecs, _ = _scan(folder, _CODEC)
    if not talkers or not codecs:
        _raise_first(damaged)
        if (folder / "config.json").is_file() and not talkers and not codecs:
            raise ModelFormatError(
                f"{folder} looks like an official model folder: make a pair of GGUF files of it "
                "with `kazeia convert`"
            )
        missing = [_ROLES[a] for a, found in ((_TALKER, talkers), (_CODEC, codecs)) if not found]
        raise ModelNotFound(
            f"{folder} holds no {' and no '.join(missing)} file; expected a pair of GGUF files "
            f"(general.architecture {_TALKER!r} and {_CODEC!r})"
        )
    if len(talkers) > 1:
        names = ", ".join(sorted(t.name for t, _ in talkers))
        raise ModelFormatError(f"{folder} holds several talker files ({names}); give one of them")
    talker, header = talkers[0]
    fitting = [c for c, other in codecs if _fits(header, other)]
    if not fitting:
        raise ModelFormatError(
            f"{folder}: {codecs[0][0].name} does not fit {talker.name}: their talker widths differ"
        )
    return ModelPair(talker, _closest(talker, fitting))


def _scan(
    folder: Path, architecture: str
) -> tuple[list[tuple[Path, GgufHeader]], list[ModelFormatError]]:
    """Files of an architecture in a folder, and what is wrong with those that cannot be read."""
    found: list[tuple[Path, GgufHeader]] = []
    damaged: list[ModelFormatError] = []
    for file in sorted(folder.glob("*.gguf")):
        try:
            header = read_header(file)
        except ModelFormatError as err:
            damaged.append(err)
            continue
        if header.architecture == architecture:
            found.append((file, header))
    return found, damaged


def _raise_first(errors: list[ModelFormatError]) -> None:
    if errors:
        raise errors[0]


def _fits(talker: GgufHeader, codec: GgufHeader) -> bool:
    """Whether both files are about the same talker width; unknown widths fit."""
    width = talker.values.get(f"{_TALKER}.embedding_length")
    other = codec.values.get("clip.gen.audio.projection_dim")
    return width is None or other is None or width == other


def _closest(talker: Path, codecs: list[Path]) -> Path:
    def shared(codec: Path) -> int:
        name = codec.name.removeprefix("mmproj-")
        n = 0
        for a, b in zip(talker.name, name, strict=False):
            if a != b:
                break
            n += 1
        return n

    best = max(codecs, key=shared)
    if sum(shared(c) == shared(best) for c in codecs) > 1:
        names = ", ".join(c.name for c in codecs)
        raise ModelFormatError(f"{talker.parent} holds several codec files that fit: {names}")
    return best


def read_header(path: Path, *, arrays: bool = False) -> GgufHeader:
    """Reads the header of a GGUF file and checks that the file holds all its data.

    arrays: array keys are read too (a vocabulary takes half a second).
    Raises ModelFormatError when the file is empty, not GGUF, damaged or truncated; ModelNotFound
    when it does not exist.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its other end
            raise ModelFormatError(f"{path} is not a file")
        with path.open("rb") as f:
            return _Parser(path, f, arrays).header()
    except FileNotFoundError as err:
        raise ModelNotFound(f"{path} does not exist") from err
    except OSError as err:
        raise ModelFormatError(f"{path} cannot be read: {err}") from err


def read_values(
    path: Path, name: str, dtype: npt.DTypeLike, offset: int, count: int
) -> npt.NDArray[Any]:
    """`count` values of the tensor `name` from byte `offset` on.

    Read, not mapped: a file that is cut in place would kill a process that maps it.
    Raises ModelFormatError when the file ends before them, OSError when it cannot be read.
    """
    values = np.fromfile(path, dtype, count, offset=offset)
    if len(values) != count:
        raise ModelFormatError(f"{path} is truncated: it ends within tensor {name}")
    return values


class _Parser:
    """Walks through a header; every step is checked against the end of the file."""

    def __init__(self, path: Path, file: BinaryIO, arrays: bool) -> None:
        self._path = path
        self._file = file
        self._arrays = arrays
        self._size = os.fstat(file.fileno()).st_size
        self._data = bytearray()  # what has been read, from the beginning of the file
        self._at = 0

    def header(self) -> GgufHeader:
        if self._size == 0:
            raise ModelFormatError(f"{self._path} is empty")
        if self._size < 4 or self._data[self._advance(4) : 4] != b"GGUF":
            raise ModelFormatError(f"{self._path} is not a GGUF file")
        version = self._number("<I")
        if version not in (2, 3):
            raise ModelFormatError(f"{self._path}: GGUF version {version}, expected 2 or 3")
        n_tensors, n_keys = self._number("<Q"), self._number("<Q")
        if max(n_tensors, n_keys) > _MAX_ENTRIES:
            raise ModelFormatError(f"{self._path}: {n_tensors} tensors, {n_keys} keys: damaged")
        values: dict[str, Any] = {}
        types: dict[str, tuple[int, int | None]] = {}
        for _ in range(n_keys):
            key = self._string()
            kind = self._number("<I")
            if kind == _ARRAY and not self._arrays:
                self._skip_array(_MAX_NESTING)
                continue
            item = self._peek() if kind == _ARRAY else None
            values[key], types[key] = self._value(kind, _MAX_NESTING), (kind, item)
        tensors = self._tensors(n_tensors, values.get("general.alignment", 32))
        return GgufHeader(str(values.get("general.architecture", "")), values, types, tensors)

    def _tensors(self, count: int, alignment: Any) -> dict[str, GgufTensor]:
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise ModelFormatError(f"{self._path}: key general.alignment is {alignment!r}")
        tensors: dict[str, GgufTensor] = {}
        for _ in range(count):
            name = self._string()
            dims = self._number("<I")
            if dims > 4:
                raise ModelFormatError(f"{self._path}: tensor {name} has {dims} dimensions")
            shape = tuple(self._number("<Q") for _ in range(dims))
            if not dims or min(shape) < 1:
                raise ModelFormatError(f"{self._path}: tensor {name} has shape {list(shape)}")
            kind, offset = self._number("<I"), self._number("<Q")
            tensors[name] = GgufTensor(shape, kind, offset, self._bytes(name, shape, kind))
        start = -(-self._at // alignment) * alignment
        tensors = {name: t._replace(offset=start + t.offset) for name, t in tensors.items()}
        end, name = max(
            ((t.offset + t.nbytes, name) for name, t in tensors.items()), default=(0, "")
        )
        if end > self._size:
            raise ModelFormatError(
                f"{self._path} is truncated: tensor {name} ends at byte {end}, "
                f"the file has {self._size}"
            )
        return tensors

    def _bytes(self, name: str, shape: tuple[int, ...], kind: int) -> int:
        if kind not in TYPE_SIZES:
            raise ModelFormatError(f"{self._path}: tensor {name}: unknown type {kind}")
        block, size = TYPE_SIZES[kind]
        return -(-math.prod(shape) // block) * size

    def _number(self, form: str) -> int:
        return int(self._unpack(form))

    def _peek(self) -> int:
        """The number that comes next, which stays."""
        number = self._number("<I")
        self._at -= 4
        return number

    def _value(self, kind: int, nesting: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(kind)
        at = self._at
        self._skip_array(nesting)  # checks the whole of it
        self._at = at
        inner, count = self._number("<I"), self._number("<Q")
        return [self._value(inner, nesting - 1) for _ in range(count)]

    def _scalar(self, kind: int) -> Any:
        if kind not in _SCALARS:
            raise ModelFormatError(f"{self._path}: unknown value type {kind}: damaged")
        return self._unpack(_SCALARS[kind])

    def _unpack(self, form: str) -> Any:
        at = self._advance(struct.calcsize(form))
        return struct.unpack_from(form, self._data, at)[0]

    def _string(self) -> str:
        length = self._number("<Q")
        at = self._advance(length)
        try:
            return str(self._data[at : at + length], "utf-8")
        except UnicodeDecodeError as err:
            raise ModelFormatError(f"{self._path}: a name is not UTF-8: damaged") from err

    def _skip_array(self, nesting: int) -> None:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _ARRAY:
            if nesting == 0:
                raise ModelFormatError(f"{self._path}: arrays nested too deeply")
            for _ in range(count):
                self._skip_array(nesting - 1)
        elif kind == _STRING:
            self._skip_strings(count)
        elif kind in _SCALARS:
            self._advance(count * struct.calcsize(_SCALARS[kind]))
        else:
            raise ModelFormatError(f"{self._path}: unknown array type {kind}: damaged")

    def _skip_strings(self, count: int) -> None:
        # Vocabularies have some 300,000 strings, so this loop is kept bare.
        unpack, data, at = struct.Struct("<Q").unpack_from, self._data, self._at
        if count > (self._size - at) // 8:
            raise self._truncated()
        for _ in range(count):
            if at + 8 > len(data):
                self._read_to(at + 8)
            at += 8 + unpack(data, at)[0]
        self._read_to(at)
        self._at = at

    def _advance(self, n: int) -> int:
        at = self._at
        self._read_to(at + n)
        self._at = at + n
        return at

    def _read_to(self, end: int) -> None:
        if end > self._size:
            raise self._truncated()
        if end > _MAX_HEADER:
            raise ModelFormatError(
                f"{self._path}: more than {_MAX_HEADER} bytes of header: damaged"
            )
        while len(self._data) < end:
            piece = self._file.read(_PIECE)
            if not piece:
                raise self._truncated()
            self._data += piece

    def _truncated(self) -> ModelFormatError:
        return ModelFormatError(f"{self._path} is truncated within its header")
