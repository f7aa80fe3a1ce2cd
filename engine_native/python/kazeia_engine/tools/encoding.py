"""Rows of f32 to and from ggml's weight types.

Block types are encoded by ggml itself, from the library inside the `llama_cpp` package, so that
every type it knows is available and the bytes are exactly those its kernels expect.  q4_0 is the
exception: the layout is ggml's, the scales are fitted here, which costs less than they spoil.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt

from kazeia_engine.errors import EngineError, ModelFormatError
from kazeia_engine.modelfiles import TYPE_SIZES
from kazeia_engine.native_log import ggml_library

__all__ = ["bf16_bits", "decode", "encode", "encode_tensor", "from_bf16_bits"]

_F32 = npt.NDArray[np.float32]

# The largest weights whose f16 value or scale is sure to be finite.
_LARGEST = {"f16": 65504.0, "q8_0": 127 * 65504.0, "q4_0": 5 * 65504.0}
_BLOCK = 32  # weights that share a scale in q4_0
_PIECE = 4096  # blocks fitted at once: few enough for the cache, enough for numpy
# Where the weight of largest magnitude lands, in steps of the scale.  ggml always takes -8; both
# signs, because only -8 exists and +8 does not.
_LANDINGS = np.concatenate([-np.linspace(6.4, 9.6, 9), np.linspace(6.0, 8.8, 9)]).astype(np.float32)


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


def bf16_bits(x: _F32) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16 of finite values, as bits."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def from_bf16_bits(bits: npt.NDArray[np.uint16]) -> _F32:
    """The f32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(rows: _F32, type: str) -> npt.NDArray[Any]:
    """Rows [n, width] of finite f32 as the bytes of a weight type (lower-case name, e.g. "q8_0").

    width has to be a multiple of the type's block.  Values beyond the range of f16, or whose scale
    is, come out infinite; `encode_tensor` refuses them.
    """
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if type == "f32":
        return rows
    if type == "f16":
        with np.errstate(over="ignore"):
            return rows.astype(np.float16)
    if type == "bf16":
        return bf16_bits(rows)
    kind = gguf.GGMLQuantizationType[type.upper()]
    block, size = TYPE_SIZES[kind]
    n, width = rows.shape
    if width % block:
        raise ValueError(f"rows of {width} do not divide into blocks of {block} ({type})")
    if type == "q4_0":
        return _q4_0(rows.reshape(-1, _BLOCK)).reshape(n, width // block * size)
    out = np.empty((n, width // block * size), dtype=np.uint8)
    done = _quantize_chunk()(int(kind), rows.ctypes.data, out.ctypes.data, 0, n, width, None)
    if done != out.nbytes:
        raise EngineError(f"ggml wrote {done} bytes of {type}, expected {out.nbytes}")
    return out


def encode_tensor(name: str, rows: _F32, type: str) -> npt.NDArray[Any]:
    """As `encode`.  Raises ModelFormatError naming the tensor for values the type cannot hold."""
    if not np.isfinite(rows).all():
        raise ModelFormatError(f"tensor {name} holds a NaN or an infinity")
    largest = max(float(rows.max(initial=0.0)), -float(rows.min(initial=0.0)))
    limit = _LARGEST.get(type, np.inf)
    if largest > limit:
        raise ModelFormatError(f"tensor {name} holds {largest:g}, beyond the range of {type}")
    return encode(rows, type)


def decode(data: npt.NDArray[Any], type: str) -> _F32:
    """The f32 values of stored rows [n, bytes] (or [n, width] for f32 and f16)."""
    if type == "f32":
        return np.ascontiguousarray(data, dtype=np.float32)
    kind = gguf.GGMLQuantizationType[type.upper()]
    return np.asarray(gguf.quants.dequantize(np.ascontiguousarray(data), kind), dtype=np.float32)


def _q4_0(blocks: _F32) -> npt.NDArray[np.uint8]:
    """Blocks [n, 32] as q4_0 [n, 18]: an f16 scale d, then 32 values of four bits; w = (q - 8) d.

    Three scales are tried, as rounded to f16: the one fitted by least squares, the one fitted to
    the values that this one rounds to, and ggml's (the largest weight lands on -8).  The least
    squared error wins, so no block is worse than ggml's.  Weighting the squares by the magnitude of
    the weights brought the logits no nearer than plain rounding does.
    """
    out = np.empty((len(blocks), 2 + _BLOCK // 2), np.uint8)
    for at in range(0, len(blocks), _PIECE):
        w = np.ascontiguousarray(blocks[at : at + _PIECE].T)  # [32, n]: sums run down columns
        largest = np.take_along_axis(w, np.abs(w).argmax(axis=0)[None], axis=0)[0]
        best = _Best(w)
        refitted = best.offer(_fit(w, largest))
        best.offer(refitted)
        best.offer(largest / np.float32(-8))
        piece = out[at : at + _PIECE]
        piece[:, :2] = best.scale[:, None].view(np.uint8)
        nibbles = (best.q + np.float32(8)).astype(np.uint8).T
        piece[:, 2:] = nibbles[:, : _BLOCK // 2] | (nibbles[:, _BLOCK // 2 :] << np.uint8(4))
    return out


def _fit(w: _F32, largest: _F32) -> _F32:
    """Scales [n] of the columns of w [32, n], whose weights of largest magnitude are `largest`.

    For given values q the best scale is sum(w q) / sum(q q), and it leaves the squared error
    sum(w w) - sum(w q)^2 / sum(q q): the candidate with the largest last term is taken.
    """
    # What is smaller is zero in f16.
    inverse = np.divide(1, largest, out=np.zeros_like(largest), where=np.abs(largest) > 1e-10)
    gain, scale = np.zeros_like(largest), np.zeros_like(largest)
    q = np.empty_like(w)
    for landing in _LANDINGS:
        np.multiply(w, landing * inverse, out=q)
        np.clip(np.rint(q, out=q), -8, 7, out=q)
        product, fitted = _best_scale(w, q)
        better = product * fitted > gain
        np.copyto(gain, product * fitted, where=better)
        np.copyto(scale, fitted, where=better)
    return scale


def _best_scale(w: _F32, q: _F32) -> tuple[_F32, _F32]:
    """sum(w q) and sum(w q) / sum(q q) of the columns of w and q [32, n]."""
    product, square = np.einsum("ij,ij->j", w, q), np.einsum("ij,ij->j", q, q)
    return product, np.divide(product, square, out=np.zeros_like(product), where=square > 0)


class _Best:
    """The best of the scales offered for the columns of w [32, n]."""

    def __init__(self, w: _F32) -> None:
        self._w = w
        self._error = np.full(w.shape[1], np.inf, np.float32)
        self.scale = np.zeros(w.shape[1], np.float16)
        self.q = np.zeros_like(w)  # -8..7

    def offer(self, scale: _F32) -> _F32:
        """Tries `scale` [n], rounded to f16; returns the scale fitted to its values."""
        rounded = scale.astype(np.float16)
        step = rounded.astype(np.float32)
        inverse = np.divide(1, step, out=np.zeros_like(step), where=step != 0)
        q = np.clip(np.rint(self._w * inverse), -8, 7)
        residue = self._w - q * step
        error = np.einsum("ij,ij->j", residue, residue)
        better = error < self._error
        np.copyto(self._error, error, where=better)
        np.copyto(self.scale, rounded, where=better)
        np.copyto(self.q, q, where=better)
        return _best_scale(self._w, q)[1]
