"""Reading of official model folders: safetensors and JSON, without torch.

Tensors are memory-mapped and turned into f32 a few rows at a time, so that a checkpoint of any
size is read within a small, fixed amount of memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import ModelFormatError, ModelNotFound
from kazeia_engine.modelfiles import read_values
from kazeia_engine.tools.encoding import from_bf16_bits

__all__ = ["Checkpoint", "Json", "read_json"]

_MAX_HEADER = 100 << 20
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F64": np.dtype("<f8"),
}


class Json:
    """A JSON object whose missing or mistyped keys give an error naming file and key."""

    def __init__(self, value: dict[str, Any], path: Path, prefix: str = "") -> None:
        self._value = value
        self._path = path
        self._prefix = prefix

    def _get(self, key: str, kinds: tuple[type, ...], default: Any) -> Any:
        value = self._value.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelFormatError(f"{self._path}: key {self._prefix}{key} is missing")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(k.__name__ for k in kinds)
            raise ModelFormatError(
                f"{self._path}: key {self._prefix}{key}: expected {expected}, got {value!r:.60}"
            )
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value: int = self._get(key, (int,), default)
        if not 1 <= value < 1 << 31:
            raise ModelFormatError(f"{self._path}: key {self._prefix}{key} is {value}")
        return value

    def id(self, key: str, limit: int) -> int:
        """A token id below `limit`."""
        value: int = self._get(key, (int,), None)
        if not 0 <= value < limit:
            raise ModelFormatError(
                f"{self._path}: key {self._prefix}{key} is {value}, expected 0..{limit - 1}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = float(self._get(key, (int, float), default))
        if not math.isfinite(value):
            raise ModelFormatError(f"{self._path}: key {self._prefix}{key} is not finite")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value: str = self._get(key, (str,), default)
        return value

    def sizes(self, key: str, default: list[int] | None = None) -> tuple[int, ...]:
        """A list of whole numbers of at least 1."""
        value = self._get(key, (list,), default)
        if not all(isinstance(v, int) and 1 <= v < 1 << 31 for v in value):
            raise ModelFormatError(f"{self._path}: key {self._prefix}{key}: {value!r:.80}")
        return tuple(value)

    def object(self, key: str, default: dict[str, Any] | None = None) -> Json:
        """A nested object."""
        return Json(self._get(key, (dict,), default), self._path, f"{self._prefix}{key}.")

    def ids(self, key: str, limit: int) -> dict[str, int]:
        """An object of names to token ids below `limit`; empty when absent."""
        inner = self.object(key, {})
        return {name: inner.id(name, limit) for name in inner.raw}

    @property
    def raw(self) -> dict[str, Any]:
        """The plain object."""
        return self._value


def read_json(path: Path) -> Json:
    """Reads a JSON object.

    Raises ModelNotFound when the file does not exist, ModelFormatError when it is not one.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as err:
        raise ModelNotFound(f"{path} does not exist") from err
    except (OSError, ValueError, RecursionError) as err:
        raise ModelFormatError(f"{path} is not readable JSON: {err}") from err
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: expected a JSON object")
    return Json(value, path)


class _Entry:
    """Where a tensor lies: file, type, shape, first byte."""

    __slots__ = ("dtype", "offset", "path", "shape")

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...], offset: int) -> None:
        self.path = path
        self.dtype = dtype
        self.shape = shape
        self.offset = offset


class Checkpoint:
    """The tensors of `model.safetensors`, or of the shards its index lists."""

    def __init__(self, folder: Path) -> None:
        """Reads the headers.

        Raises ModelNotFound when a file is missing, ModelFormatError when one is damaged.
        """
        self._folder = folder
        self._entries: dict[str, _Entry] = {}
        whole = folder / "model.safetensors"
        index = folder / "model.safetensors.index.json"
        if whole.exists():
            self._read_header(whole)
        elif index.exists():
            shards = read_json(index).object("weight_map").raw.values()
            for shard in sorted({str(s) for s in shards}):
                if Path(shard).name != shard:
                    raise ModelFormatError(f"{index}: {shard!r} is not a plain file name")
                self._read_header(folder / shard)
        else:
            raise ModelNotFound(f"{whole} does not exist (nor {index.name})")

    def _read_header(self, path: Path) -> None:
        try:
            size = path.stat().st_size
            with path.open("rb") as f:
                length = int.from_bytes(f.read(8), "little")
                if size < 8 or length > min(size - 8, _MAX_HEADER):
                    raise ModelFormatError(f"{path} is not a safetensors file, or is truncated")
                header = json.loads(f.read(length))
        except FileNotFoundError as err:
            raise ModelNotFound(f"{path} does not exist") from err
        except (OSError, ValueError, RecursionError) as err:
            raise ModelFormatError(f"{path} is not a safetensors file: {err}") from err
        if not isinstance(header, dict):
            raise ModelFormatError(f"{path} is not a safetensors file")
        for name, info in header.items():
            if name != "__metadata__":
                self._entries[name] = _entry(path, name, info, 8 + length, size)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; ModelFormatError when there is none of that name."""
        return self._find(name).shape

    def _find(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise ModelFormatError(f"{self._folder}: tensor {name} is missing")
        if entry.dtype not in _DTYPES:
            raise ModelFormatError(
                f"{entry.path}: tensor {name} is {entry.dtype}, "
                f"expected one of {', '.join(_DTYPES)}"
            )
        return entry

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks that a tensor is there with a shape; axes of one may be left out."""
        got = self.shape(name)
        if [n for n in got if n != 1] != [n for n in shape if n != 1]:
            raise ModelFormatError(
                f"{self._folder}: tensor {name} has shape {list(got)}, expected {list(shape)}"
            )

    def rows(
        self, name: str, width: int, limit: int = 1 << 22
    ) -> Iterator[npt.NDArray[np.float32]]:
        """A tensor as f32 rows of `width`, in pieces of at most about `limit` values."""
        entry = self._find(name)
        count = math.prod(entry.shape)
        dtype = _DTYPES[entry.dtype]
        step = max(1, limit // width) * width
        for start in range(0, count, step):
            at = entry.offset + start * dtype.itemsize
            piece = read_values(entry.path, name, dtype, at, min(step, count - start))
            values = from_bf16_bits(piece) if entry.dtype == "BF16" else piece.astype(np.float32)
            if not np.isfinite(values).all():
                raise ModelFormatError(f"{entry.path}: tensor {name} holds NaN or infinite values")
            yield values.reshape(-1, width)

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """A whole tensor as f32 in its own shape."""
        shape = self.shape(name)
        if math.prod(shape) == 0:
            raise ModelFormatError(f"{self._folder}: tensor {name} is empty")
        return np.concatenate(list(self.rows(name, shape[-1] if shape else 1))).reshape(shape)


def _entry(path: Path, name: str, info: Any, base: int, size: int) -> _Entry:
    try:
        dtype, shape = str(info["dtype"]), tuple(int(n) for n in info["shape"])
        begin, end = (int(n) for n in info["data_offsets"])
    except (TypeError, KeyError, ValueError) as err:
        raise ModelFormatError(f"{path}: the entry of tensor {name} is damaged") from err
    if min((*shape, begin), default=0) < 0 or begin > end:
        raise ModelFormatError(f"{path}: the entry of tensor {name} is damaged")
    if base + end > size:
        raise ModelFormatError(f"{path} is truncated: tensor {name} ends after the file does")
    if dtype in _DTYPES and math.prod(shape) * _DTYPES[dtype].itemsize != end - begin:
        raise ModelFormatError(f"{path}: tensor {name} does not have the bytes its shape needs")
    return _Entry(path, dtype, shape, base + begin)
