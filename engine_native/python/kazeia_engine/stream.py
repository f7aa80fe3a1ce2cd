"""A running utterance and a running decoder."""

from __future__ import annotations

import ctypes as C
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kazeia_engine import binding
from kazeia_engine.errors import EngineError, InvalidInput, KazeiaError
from kazeia_engine.types import Chunk, Ended, Result

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DecoderStream", "Stream", "as_codes"]

_POLL_MS = 200
_DECODER_PARTS = ("quant", "preconv", "pretr", "upsample", "bigvgan")
_CUT_BY: dict[Ended, str] = {
    "max_frames": "limit: max_frames",
    "runaway": "guard: far longer than its text",
    "silence": "guard: silent for too long",
    "repetition": "guard: the same sounds over and over",
}
_ENDED: dict[int, Ended] = {
    1: "eos",
    2: "max_frames",
    3: "cancelled",
    5: "runaway",
    6: "silence",
    7: "repetition",
}


def as_codes(codes: npt.ArrayLike, n_codebooks: int) -> npt.NDArray[np.int32]:
    """Codes as a contiguous int32 array [T, n_codebooks].

    Raises:
        InvalidInput: another shape, or values that are not whole numbers.
    """
    try:
        array = np.asarray(codes)
    except ValueError as error:
        raise InvalidInput(f"codes are no array: {error}", param="codes") from error
    if array.size == 0 and array.ndim <= 2:
        return np.empty((0, n_codebooks), np.int32)
    if array.ndim != 2 or array.shape[1] != n_codebooks:
        raise InvalidInput(
            f"codes have shape {array.shape}, expected [T, {n_codebooks}]", param="codes"
        )
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"codes have type {array.dtype}, expected integers", param="codes")
    if array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        raise InvalidInput("codes are outside the codebook", param="codes")
    return np.ascontiguousarray(array, dtype=np.int32)


class Stream:
    """Iterates over the chunks of one utterance as they are made. Keeps its model alive.

    One thread iterates; close() may be called from any thread and ends the iteration. After the
    end, `result` holds the codes and figures (its pcm is empty: the chunks hold the samples).
    """

    def __init__(
        self,
        model: C.c_void_p,
        params: binding.StreamParams,
        *,
        owner: object,
        sample_rate: int,
        n_codebooks: int,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self._lib = binding.library()
        self._profiled = bool(params.profile)
        self._owner = owner  # a model that is collected ends its streams
        self._sample_rate = sample_rate
        self._n_codebooks = n_codebooks
        self._samples = 0
        self._result: Result | None = None
        self._lock = threading.Lock()  # guards the handle against close() from another thread
        self._handle: C.c_void_p | None = C.c_void_p()
        self.warnings = warnings
        binding.check(self._lib.kz_stream_open(model, C.byref(params), C.byref(self._handle)))

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        handle = self._handle
        if handle is None:
            raise StopIteration
        chunk = binding.ChunkStruct()
        status = binding.TIMEOUT
        try:
            # Back in Python now and then, so that Ctrl-C is seen during a long chunk.
            while status == binding.TIMEOUT:
                read = self._lib.kz_stream_read(handle, _POLL_MS, C.byref(chunk))
                status = binding.check(read)
        except KazeiaError:
            self._free()
            raise
        if status == binding.END:
            self._finish()
            raise StopIteration
        pcm = np.ctypeslib.as_array(chunk.pcm, (chunk.n_samples,)).copy()
        self._samples += len(pcm)
        return Chunk(pcm, chunk.index, chunk.first_frame, chunk.n_frames, chunk.t_s)

    @property
    def result(self) -> Result:
        """Codes and figures of the finished utterance.

        Raises:
            EngineError: the stream has not ended yet, or failed.
        """
        if self._result is None:
            raise EngineError("the stream has no result: it is still running or has failed")
        return self._result

    def push_ids(self, ids: list[int], *, closing: bool = False) -> None:
        """Append text ids to a stream whose text is open; `closing`: they are the last.

        Nothing happens once the stream has ended.

        Raises:
            InvalidInput: the text is complete, or an id is outside the text vocabulary.
        """
        array = np.array(ids, np.int32)
        push = self._lib.kz_stream_finish_text if closing else self._lib.kz_stream_push_text
        with self._lock:
            if self._handle is not None:
                binding.check(push(self._handle, binding.ints(array), len(array)))

    def close(self) -> None:
        """Cancels what is not finished; the reading thread then sees the end of the stream."""
        with self._lock:
            if self._handle is not None:
                self._lib.kz_stream_cancel(self._handle)

    def _finish(self) -> None:
        r = binding.ResultStruct(struct_size=C.sizeof(binding.ResultStruct))
        binding.check(self._lib.kz_stream_result(self._handle, C.byref(r)))
        shape = (r.n_frames, self._n_codebooks)
        codes = (
            np.ctypeslib.as_array(r.codes, shape).copy()
            if r.n_frames
            else np.empty(shape, np.int32)
        )
        seconds = self._samples / self._sample_rate
        self._result = Result(
            pcm=np.empty(0, np.float32),
            sample_rate=self._sample_rate,
            codes=codes,
            ended=_ENDED[r.ended],
            ttfb_s=r.ttfb_s if r.ttfb_s >= 0 else float("nan"),
            n_chunks=r.n_chunks,
            rtf=r.work_s / seconds if seconds else float("nan"),
            stages=self._stages(r),
            warnings=self.warnings + _truncation(r.ended, r.n_frames),
        )
        self._free()

    def _stages(self, result: binding.ResultStruct) -> dict[str, float]:
        """Seconds by stage; those of the decoder's parts only where they were measured."""
        stages = dict(zip(binding.stage_names(), result.stage_s, strict=True))
        return {k: s for k, s in stages.items() if self._profiled or k not in _DECODER_PARTS}

    def _free(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._lib.kz_stream_free(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self._free()


def _truncation(ended: int, frames: int) -> tuple[str, ...]:
    reason = _CUT_BY.get(_ENDED[ended])
    if reason is None:
        return ()
    return (f"cut at {frames} frames before the speech ended by itself ({reason})",)


class DecoderStream:
    """A codec decoder with memory: feed frames in any portions, get their audio at once."""

    def __init__(self, model: C.c_void_p, *, n_codebooks: int, samples_per_frame: int) -> None:
        self._lib = binding.library()
        self._lock = threading.Lock()
        self._n_codebooks = n_codebooks
        self._samples_per_frame = samples_per_frame
        self._handle: C.c_void_p | None = C.c_void_p()
        binding.check(self._lib.kz_decoder_open(model, C.byref(self._handle)))

    def feed(self, codes: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """codes int[T, 16] -> their float32[T * 1920] samples, -1..1.

        Raises:
            InvalidInput: wrong shape or a code outside the codebook; nothing was decoded.
        """
        array = as_codes(codes, self._n_codebooks)
        pcm = np.empty(len(array) * self._samples_per_frame, np.float32)
        with self._lock:
            if self._handle is None:
                raise EngineError("the decoder is closed")
            arguments = (self._handle, binding.ints(array), len(array), binding.floats(pcm))
            binding.check(self._lib.kz_decoder_feed(*arguments))
        return pcm

    def reset(self) -> None:
        """Forgets everything decoded so far."""
        with self._lock:
            if self._handle is not None:
                binding.check(self._lib.kz_decoder_reset(self._handle))

    def close(self) -> None:
        """Frees the memory, after a feed() that is running."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._lib.kz_decoder_free(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()
