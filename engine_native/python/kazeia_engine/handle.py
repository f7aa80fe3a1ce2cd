"""The native model, kept from being freed while it is used."""

from __future__ import annotations

import ctypes as C
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kazeia_engine import binding
from kazeia_engine.errors import EngineClosed, EngineError
from kazeia_engine.modelfiles import ModelPair

__all__ = ["Handle"]


class Handle:
    """Weights and threads of a model in the library. Safe to use from several threads."""

    def __init__(self, pair: ModelPair, params: binding.LoadParams) -> None:
        """Loads the weights; takes a second or two, in which Python threads go on.

        Raises what `binding.check` does.
        """
        self._lib = binding.library()
        self._handle: C.c_void_p | None = None
        self._process = os.getpid()  # the engine's threads do not exist in a forked child
        self._idle = threading.Condition()  # guards the handle and the calls that use it
        self._calls = 0
        handle = C.c_void_p()
        paths = os.fsencode(pair.talker), os.fsencode(pair.codec)
        binding.check(self._lib.kz_model_load(*paths, C.byref(params), C.byref(handle)))
        self._handle = handle
        self.info = binding.InfoStruct(struct_size=C.sizeof(binding.InfoStruct))
        binding.check(self._lib.kz_model_get_info(handle, C.byref(self.info)))

    @contextmanager
    def use(self) -> Iterator[C.c_void_p]:
        """The model for calls of the library; close() waits for the end of the block.

        Raises EngineClosed, and EngineError in a process that was forked after loading.
        """
        with self._idle:
            if self._handle is None:
                raise EngineClosed("the model is closed")
            if os.getpid() != self._process:
                raise EngineError("the model was loaded before a fork: load it in the child")
            handle = self._handle
            self._calls += 1
        try:
            yield handle
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def close(self) -> None:
        """Ends running streams and frees the weights, after the calls that are running."""
        with self._idle:
            handle, self._handle = self._handle, None
            while self._calls:
                self._idle.wait()
        if handle is not None and os.getpid() == self._process:
            self._lib.kz_model_free(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()
