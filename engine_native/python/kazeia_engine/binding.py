"""kazeia.h through ctypes: structures, functions, and statuses as exceptions.

Every call that may take long releases the GIL (ctypes does so for every foreign call), so an
event loop in another thread goes on running.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import (
    EngineClosed,
    EngineError,
    InvalidInput,
    ModelFormatError,
    ModelNotFound,
)

__all__ = [
    "END",
    "OK",
    "TIMEOUT",
    "ChunkStruct",
    "GuardStruct",
    "InfoStruct",
    "LoadParams",
    "MachineStruct",
    "MeasureParams",
    "PassesStruct",
    "PromptStruct",
    "ResultStruct",
    "SamplingStruct",
    "StreamParams",
    "TraceOut",
    "check",
    "floats",
    "ints",
    "library",
    "stage_names",
]

OK, END, TIMEOUT = 0, 1, 2
_ABI_VERSION = 5
_N_STAGES = 10

_ERRORS: dict[int, Callable[[str], Exception]] = {
    10: InvalidInput,
    11: ModelNotFound,
    12: ModelFormatError,
    13: EngineError,
    14: EngineError,
    15: EngineClosed,
    16: EngineError,
}

_FloatP = C.POINTER(C.c_float)
_IntP = C.POINTER(C.c_int32)


class LoadParams(C.Structure):
    """kz_load_params"""

    _fields_ = [
        ("struct_size", C.c_uint32),
        ("precision", C.c_int32),
        ("n_threads", C.c_int32),
        ("keep_ggml_log", C.c_int32),
        ("backend", C.c_int32),
        ("talker_device", C.c_char_p),
        ("cp_device", C.c_char_p),
        ("decoder_device", C.c_char_p),
        ("max_rows", C.c_int32),
    ]


class InfoStruct(C.Structure):
    """kz_model_info"""

    _fields_ = [
        ("struct_size", C.c_uint32),
        *[
            (name, C.c_int32)
            for name in (
                "sample_rate",
                "samples_per_frame",
                "n_codebooks",
                "codebook_size",
                "text_vocab",
                "codec_vocab",
                "codec_eos",
                "talker_hidden",
                "talker_layers",
                "cp_hidden",
                "cp_layers",
                "max_positions",
            )
        ],
        ("weight_bytes", C.c_int64),
        ("generator_threads", C.c_int32),
        ("decoder_threads", C.c_int32),
        ("talker_type", C.c_char * 16),
        ("cp_type", C.c_char * 16),
        ("decoder_type", C.c_char * 16),
    ]


class SamplingStruct(C.Structure):
    """kz_sampling"""

    _fields_ = [
        ("temperature", C.c_float),
        ("top_k", C.c_int32),
        ("top_p", C.c_float),
        ("repetition_penalty", C.c_float),
        ("rep_window", C.c_int32),
    ]


class PromptStruct(C.Structure):
    """kz_prompt"""

    _fields_ = [
        ("text_ids", _IntP),
        ("codec_ids", _IntP),
        ("n_positions", C.c_int32),
        ("trailing_ids", _IntP),
        ("n_trailing", C.c_int32),
        ("pad_text_id", C.c_int32),
        ("text_open", C.c_int32),
        ("n_text_tokens", C.c_int32),
        ("n_prefix", C.c_int32),
    ]


class GuardStruct(C.Structure):
    """kz_guard"""

    _fields_ = [
        ("frames_per_token", C.c_float),
        ("min_frames", C.c_int32),
        ("eos_boost", C.c_float),
        ("repeat_frames", C.c_int32),
        ("silence_frames", C.c_int32),
    ]


class StreamParams(C.Structure):
    """kz_stream_params"""

    _fields_ = [
        ("struct_size", C.c_uint32),
        ("prompt", PromptStruct),
        ("talker", SamplingStruct),
        ("cp", SamplingStruct),
        ("guard", GuardStruct),
        ("seed", C.c_uint64),
        *[
            (name, C.c_int32)
            for name in (
                "max_frames",
                "min_frames",
                "chunk",
                "skip_frames",
                "cp_recompute",
                "ignore_eos",
                "profile",
            )
        ],
    ]


class ChunkStruct(C.Structure):
    """kz_chunk"""

    _fields_ = [
        ("pcm", _FloatP),
        ("n_samples", C.c_int32),
        ("index", C.c_int32),
        ("first_frame", C.c_int32),
        ("n_frames", C.c_int32),
        ("t_s", C.c_double),
    ]


class ResultStruct(C.Structure):
    """kz_result"""

    _fields_ = [
        ("struct_size", C.c_uint32),
        ("ended", C.c_int32),
        ("n_frames", C.c_int32),
        ("n_chunks", C.c_int32),
        ("codes", _IntP),
        ("ttfb_s", C.c_double),
        ("work_s", C.c_double),
        ("wait_s", C.c_double),
        ("stage_s", C.c_double * _N_STAGES),
    ]


class TraceOut(C.Structure):
    """kz_trace_out"""

    _fields_ = [
        ("prompt_embeds", _FloatP),
        ("talker_hidden", _FloatP),
        ("talker_logits", _FloatP),
        ("cp_logits", _FloatP),
        ("codes", _IntP),
        ("n_done", C.c_int32),
    ]


class MeasureParams(C.Structure):
    """kz_measure_params"""

    _fields_ = [
        ("struct_size", C.c_uint32),
        ("n_threads", C.c_int32),
        ("seconds", C.c_double),
        ("working_set", C.c_int64),
    ]


class MachineStruct(C.Structure):
    """kz_machine"""

    _fields_ = [
        ("struct_size", C.c_uint32),
        ("n_threads", C.c_int32),
        ("working_set", C.c_int64),
        ("read_gbs_1", C.c_double),
        ("read_gbs_n", C.c_double),
        ("gemm_gflops_1", C.c_double),
        ("gemm_gflops_n", C.c_double),
        ("kernels", C.c_char * 16),
        ("integer_kernels", C.c_char * 16),
    ]


class PassesStruct(C.Structure):
    """kz_passes"""

    _fields_ = [
        ("struct_size", C.c_uint32),
        ("n_threads", C.c_int32),
        ("talker_s", C.c_double),
        ("cp_s", C.c_double),
    ]


def _declare(lib: C.CDLL) -> None:
    handle = C.c_void_p
    calls: dict[str, tuple[Any, list[Any]]] = {
        "kz_abi_version": (C.c_uint32, []),
        "kz_last_error": (C.c_char_p, []),
        "kz_stage_name": (C.c_char_p, [C.c_int32]),
        "kz_model_load": (
            C.c_int,
            [C.c_char_p, C.c_char_p, C.POINTER(LoadParams), C.POINTER(handle)],
        ),
        "kz_model_free": (None, [handle]),
        "kz_model_get_info": (C.c_int, [handle, C.POINTER(InfoStruct)]),
        "kz_stream_params_default": (C.c_int, [C.POINTER(StreamParams)]),
        "kz_stream_open": (C.c_int, [handle, C.POINTER(StreamParams), C.POINTER(handle)]),
        "kz_stream_push_text": (C.c_int, [handle, _IntP, C.c_int32]),
        "kz_stream_finish_text": (C.c_int, [handle, _IntP, C.c_int32]),
        "kz_stream_read": (C.c_int, [handle, C.c_int32, C.POINTER(ChunkStruct)]),
        "kz_stream_cancel": (None, [handle]),
        "kz_stream_result": (C.c_int, [handle, C.POINTER(ResultStruct)]),
        "kz_stream_free": (None, [handle]),
        "kz_decoder_open": (C.c_int, [handle, C.POINTER(handle)]),
        "kz_decoder_feed": (C.c_int, [handle, _IntP, C.c_int32, _FloatP]),
        "kz_decoder_reset": (C.c_int, [handle]),
        "kz_decoder_free": (None, [handle]),
        "kz_trace": (
            C.c_int,
            [handle, C.POINTER(StreamParams), _IntP, C.c_int32, C.POINTER(TraceOut)],
        ),
        "kz_decoder_trace": (
            C.c_int,
            [handle, _IntP, C.c_int32, C.c_char_p, C.POINTER(C.c_int64), _FloatP],
        ),
        "kz_sampler_probs": (
            C.c_int,
            [
                C.POINTER(SamplingStruct),
                _FloatP,
                C.c_int32,
                C.POINTER(C.c_uint8),
                _IntP,
                C.c_int32,
                _FloatP,
            ],
        ),
        "kz_measure_machine": (C.c_int, [C.POINTER(MeasureParams), C.POINTER(MachineStruct)]),
        "kz_measure_passes": (C.c_int, [handle, C.POINTER(PassesStruct)]),
        "kz_devices": (C.c_int, [C.c_char_p, C.c_size_t, C.POINTER(C.c_size_t)]),
        "kz_model_placement": (
            C.c_int,
            [handle, C.c_char_p, C.c_size_t, C.POINTER(C.c_size_t)],
        ),
    }
    for name, (result, arguments) in calls.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments


@lru_cache(maxsize=1)
def library() -> C.CDLL:
    """The native library, loaded once.

    Raises:
        EngineError: it is missing, cannot be loaded, or has another version than this package.
    """
    path = Path(__file__).parent / "lib" / "libkazeia.so"
    try:
        lib = C.CDLL(str(path))
    except OSError as error:
        raise EngineError(f"the native engine {path} cannot be loaded: {error}") from error
    _declare(lib)
    if lib.kz_abi_version() != _ABI_VERSION:
        raise EngineError(f"{path} has ABI version {lib.kz_abi_version()}, expected {_ABI_VERSION}")
    return lib


@lru_cache(maxsize=1)
def stage_names() -> tuple[str, ...]:
    """Names of kz_result.stage_s, in order."""
    return tuple(library().kz_stage_name(i).decode() for i in range(_N_STAGES))


def check(status: int) -> int:
    """Returns OK, END or TIMEOUT; any other status raises its exception."""
    if status in (OK, END, TIMEOUT):
        return status
    message = (library().kz_last_error() or b"").decode("utf-8", "replace")
    raise _ERRORS.get(status, EngineError)(message)


def ints(array: npt.NDArray[np.int32]) -> Any:
    """A pointer to a contiguous int32 array; the caller keeps the array alive."""
    return array.ctypes.data_as(_IntP)


def floats(array: npt.NDArray[np.float32]) -> Any:
    """A pointer to a contiguous float32 array; the caller keeps the array alive."""
    return array.ctypes.data_as(_FloatP)
