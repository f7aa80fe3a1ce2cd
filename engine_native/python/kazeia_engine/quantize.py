"""Encoding of f32 rows into ggml's weight types.

Block types are encoded by ggml itself, from the library inside the `llama_cpp` package, so that
every type it knows is available and the bytes are exactly those its kernels expect.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import EngineError
from kazeia_engine.native_log import ggml_library

__all__ = ["bf16_bits", "encode", "from_bf16_bits"]


@functools.cache
def _quantize_chunk() -> Callable[..., int]:
    function = ggml_library().ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    return cast("Callable[..., int]", function)


def bf16_bits(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16 of finite values, as bits."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def from_bf16_bits(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The f32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(rows: npt.NDArray[np.float32], type: str) -> npt.NDArray[Any]:
    """Rows [n, width] of f32 as the bytes of a weight type (lower-case name, e.g. "q8_0").

    width has to be a multiple of the type's block.
    """
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if type == "f32":
        return rows
    if type == "f16":
        return rows.astype(np.float16)
    if type == "bf16":
        return bf16_bits(rows)
    kind = gguf.GGMLQuantizationType[type.upper()]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n, width = rows.shape
    if width % block:
        raise ValueError(f"rows of {width} do not divide into blocks of {block} ({type})")
    out = np.empty((n, width // block * size), dtype=np.uint8)
    done = _quantize_chunk()(int(kind), rows.ctypes.data, out.ctypes.data, 0, n, width, None)
    if done != out.nbytes:
        raise EngineError(f"ggml wrote {done} bytes of {type}, expected {out.nbytes}")
    return out
