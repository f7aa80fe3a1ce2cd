"""Metadata arrays of a GGUF file, read by ggml itself.

`modelfiles.read_header` checks a file and reads its scalars without native code.  Vocabularies
are arrays of 155,000 strings, for which a loop in Python is slow; ggml has them in memory in a
fraction of a second and hands out single elements.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import ModelFormatError
from kazeia_engine.native_log import ggml_library, native_log

__all__ = ["GgufKeys"]

_ARRAY, _STRING, _INT32, _UINT32 = 9, 8, 5, 4


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@functools.cache
def _api() -> ctypes.CDLL:
    lib = ggml_library()
    context, index = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("gguf_init_from_file", context, [ctypes.c_char_p, _InitParams]),
        ("gguf_free", None, [context]),
        ("gguf_find_key", index, [context, ctypes.c_char_p]),
        ("gguf_get_kv_type", ctypes.c_int, [context, index]),
        ("gguf_get_arr_type", ctypes.c_int, [context, index]),
        ("gguf_get_arr_n", ctypes.c_size_t, [context, index]),
        ("gguf_get_arr_data", ctypes.c_void_p, [context, index]),
        ("gguf_get_arr_str", ctypes.c_char_p, [context, index, ctypes.c_size_t]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class GgufKeys:
    """The arrays of one file, open until `close` or the end of the `with` block."""

    def __init__(self, path: Path) -> None:
        """Reads the metadata of `path`.  Raises ModelFormatError when ggml cannot."""
        self._path = path
        self._handle: int | None = None
        with native_log().errors() as errors:
            handle = _api().gguf_init_from_file(bytes(path), _InitParams(True, None))
        if not handle:
            reason = "; ".join(errors) or "ggml cannot read it"
            raise ModelFormatError(f"{path} is damaged: {reason}")
        self._handle = handle

    def close(self) -> None:
        """Frees what was read."""
        if self._handle is not None:
            _api().gguf_free(self._handle)
            self._handle = None

    def __enter__(self) -> GgufKeys:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def length(self, key: str) -> int:
        """Elements of an array; 0 when there is no such key."""
        at = self._find(key)
        return 0 if at is None else int(_api().gguf_get_arr_n(self._handle, at))

    def strings(
        self, key: str, indices: npt.NDArray[np.int64] | None = None
    ) -> tuple[str, ...] | None:
        """A string array, or its elements at `indices`; None when there is no such key."""
        at = self._find(key, _STRING)
        if at is None:
            return None
        n = int(_api().gguf_get_arr_n(self._handle, at))
        wanted = range(n) if indices is None else [int(i) for i in indices if 0 <= i < n]
        get = _api().gguf_get_arr_str
        return tuple((get(self._handle, at, i) or b"").decode("utf-8", "replace") for i in wanted)

    def integers(self, key: str) -> npt.NDArray[np.int32] | None:
        """An array of 32-bit integers, copied; None when there is no such key."""
        at = self._find(key, _INT32, _UINT32)
        if at is None:
            return None
        n = int(_api().gguf_get_arr_n(self._handle, at))
        if n == 0:
            return np.zeros(0, np.int32)
        data = (ctypes.c_int32 * n).from_address(_api().gguf_get_arr_data(self._handle, at))
        return np.array(data, dtype=np.int32)

    def _find(self, key: str, *types: int) -> int | None:
        if self._handle is None:
            raise ModelFormatError(f"{self._path} has been closed")
        at = int(_api().gguf_find_key(self._handle, key.encode()))
        if at < 0:
            return None
        is_array = _api().gguf_get_kv_type(self._handle, at) == _ARRAY
        if not is_array or (types and _api().gguf_get_arr_type(self._handle, at) not in types):
            wanted = "strings" if _STRING in types else "integers" if types else "values"
            raise ModelFormatError(f"{self._path}: key {key} is not an array of {wanted}")
        return at
