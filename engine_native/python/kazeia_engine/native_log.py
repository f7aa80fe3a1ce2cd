"""The log of ggml and llama.cpp, led into Python's `logging` so that nothing is printed.

Both libraries write to standard error unless they are given a callback.  Their messages go to the
logger "kazeia.ggml": errors as errors, everything else as debug messages, since what llama.cpp
calls a warning (a tokenizer without a BOS token, say) is normal for these models.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazeia_engine.errors import EngineError

__all__ = ["NativeLog", "ggml_library", "native_log"]

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_LIBRARY_NAMES = {"win32": "ggml-base.dll", "darwin": "libggml-base.dylib"}


class NativeLog:
    """A callback for `ggml_log_set` and `llama_log_set`."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("kazeia.ggml")
        self._local = threading.local()
        self.callback = _CALLBACK(self._receive)  # referenced here for as long as C holds it

    def _receive(self, level: int, text: bytes | None, _user: Any) -> None:
        line = (text or b"").decode("utf-8", "replace").strip()
        if not line:
            return
        if level == _ERROR:
            collected: list[str] | None = getattr(self._local, "errors", None)
            if collected is None:
                self._logger.error("%s", line)
            else:
                collected.append(line)
        else:
            self._logger.debug("%s", line)

    @contextmanager
    def errors(self) -> Iterator[list[str]]:
        """Collects this thread's error messages in the list it yields; they are not logged."""
        before = getattr(self._local, "errors", None)
        collected: list[str] = []
        self._local.errors = collected
        try:
            yield collected
        finally:
            self._local.errors = before


@functools.cache
def native_log() -> NativeLog:
    """The one callback of the process: C keeps a pointer to it."""
    return NativeLog()


@functools.cache
def ggml_library() -> ctypes.CDLL:
    """The libggml-base inside the `llama_cpp` package, its log already led to `native_log()`.

    Raises EngineError when the package is missing or its library cannot be loaded.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise EngineError("the package llama-cpp-python, which brings ggml, is not installed")
    path = Path(spec.origin).parent / "lib" / _LIBRARY_NAMES.get(sys.platform, "libggml-base.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as err:
        raise EngineError(f"cannot load ggml from the llama_cpp package: {err}") from err
    library.ggml_log_set.argtypes = [_CALLBACK, ctypes.c_void_p]
    library.ggml_log_set.restype = None
    library.ggml_log_set(native_log().callback, None)
    return library
