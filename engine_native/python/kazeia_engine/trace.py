"""Runs that keep intermediate values, for parity checks."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np
import numpy.typing as npt

from kazeia_engine import binding
from kazeia_engine.errors import InvalidInput
from kazeia_engine.handle import Handle
from kazeia_engine.stream import as_codes

__all__ = ["trace", "trace_decoder"]

_DECODER_STAGES = (
    "quant",
    "preconv",
    "pretr",
    "upsample",
    "dac.entry",
    "dac.0",
    "dac.1",
    "dac.2",
    "dac.3",
    "pcm",
)


def trace(
    handle: Handle, params: binding.StreamParams, frames: int, force_codes: npt.ArrayLike | None
) -> dict[str, npt.NDArray[Any]]:
    """As `Model.trace`, for the native parameters of a stream with its prompt."""
    n = handle.info
    forced = None
    if force_codes is not None:
        forced = as_codes(force_codes, n.n_codebooks)
        if len(forced) < frames:
            raise InvalidInput(
                f"force_codes has {len(forced)} frames, expected {frames}", param="force_codes"
            )
    arrays = {
        "prompt_embeds": np.zeros((params.prompt.n_positions, n.talker_hidden), np.float32),
        "talker_hidden": np.zeros((frames, n.talker_hidden), np.float32),
        "talker_logits": np.zeros((frames, n.codec_vocab), np.float32),
        "cp_logits": np.zeros((frames, n.n_codebooks - 1, n.codebook_size), np.float32),
    }
    codes = np.zeros((frames, n.n_codebooks), np.int32)
    out = binding.TraceOut(
        **{k: binding.floats(v) for k, v in arrays.items()}, codes=binding.ints(codes)
    )
    pointer = binding.ints(forced) if forced is not None else None
    with handle.use() as model:
        arguments = (model, C.byref(params), pointer, frames, C.byref(out))
        binding.check(binding.library().kz_trace(*arguments))
    done = out.n_done
    scored = min(frames, done + 1)  # the row that chose end-of-speech included
    return {
        "prompt_embeds": arrays["prompt_embeds"],
        "talker_hidden": arrays["talker_hidden"][:scored],
        "talker_logits": arrays["talker_logits"][:scored],
        "cp_logits": arrays["cp_logits"][:done],
        "codes": codes[:done],
    }


def trace_decoder(handle: Handle, codes: npt.ArrayLike) -> dict[str, npt.NDArray[np.float32]]:
    """As `Model.trace_decoder`."""
    array = as_codes(codes, handle.info.n_codebooks)
    if not len(array):
        raise InvalidInput("codes are empty", param="codes")
    call = binding.library().kz_decoder_trace
    stages = {}
    for name in _DECODER_STAGES:
        shape = (C.c_int64 * 2)()
        with handle.use() as model:
            arguments = (model, binding.ints(array), len(array), name.encode(), shape)
            binding.check(call(*arguments, None))
            out = np.empty((shape[0], shape[1]), np.float32)
            binding.check(call(*arguments, binding.floats(out)))
        stages[name] = out
    return stages
