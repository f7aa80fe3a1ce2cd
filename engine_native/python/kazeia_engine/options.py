"""Keyword options of an utterance: each checked, and named in the error when it is wrong.

What an option is when it is not given stands in one place, kz_stream_params_default.
"""

from __future__ import annotations

import ctypes as C
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from kazeia_engine import binding
from kazeia_engine.errors import InvalidInput
from kazeia_engine.types import Guard, TextMode

__all__ = [
    "LiveOptions",
    "Options",
    "SpeechOptions",
    "default_options",
    "integer",
    "one_of",
    "stream_params",
    "voice_options",
]


class LiveOptions(TypedDict, total=False):
    """Keyword options of `Model.stream_live`; `Model.stream` tells what they mean."""

    speaker: str | None
    language: str
    instruct: str | None
    seed: int
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    rep_window: int
    cp_temperature: float
    cp_top_k: int
    cp_top_p: float
    max_frames: int
    min_frames: int
    chunk: Literal["auto"] | int
    skip_frames: int
    guard: Guard | None
    cp_cache: bool
    ignore_eos: bool
    profile: bool


class SpeechOptions(LiveOptions, total=False):
    """Keyword options of `Model.stream`."""

    text_mode: TextMode


_MANY = 1 << 30
_AUTO_CHUNK = -1


class _Number(NamedTuple):
    """Where a number stands in kz_stream_params, and its bounds."""

    place: str
    low: int
    high: int | None  # None: the model's positions
    above: bool = False  # more than low


_NUMBERS = {
    "seed": _Number("seed", 0, (1 << 64) - 1),
    "temperature": _Number("talker.temperature", 0, 100),
    "top_k": _Number("talker.top_k", 0, _MANY),
    "top_p": _Number("talker.top_p", 0, 1, above=True),
    "repetition_penalty": _Number("talker.repetition_penalty", 0, 100, above=True),
    "rep_window": _Number("talker.rep_window", 0, _MANY),
    "cp_temperature": _Number("cp.temperature", 0, 100),
    "cp_top_k": _Number("cp.top_k", 0, _MANY),
    "cp_top_p": _Number("cp.top_p", 0, 1, above=True),
    "max_frames": _Number("max_frames", 1, _MANY),
    "min_frames": _Number("min_frames", 0, _MANY),
    "skip_frames": _Number("skip_frames", 0, None),
}


def default_options() -> dict[str, Any]:
    """The numbers among the options, and "chunk", as they are when they are not given."""
    params = _default_params()
    places = {name: _find(params, number.place) for name, number in _NUMBERS.items()}
    # The floats of C have no more than six digits.
    numbers = {name: round(getattr(owner, field), 6) for name, (owner, field) in places.items()}
    return {**numbers, "chunk": _chunk_option(params)}


def stream_params(
    options: Mapping[str, Any], *, max_positions: int, longest: int
) -> binding.StreamParams:
    """The native parameters of a stream, but for its prompt.

    max_positions: of the model, more than any chunk has frames; longest: frames that fit behind the
    prompt, to which max_frames and min_frames are cut. Raises InvalidInput for what is out of range
    or unknown.
    """
    o = Options(options)
    params = _default_params()
    for name, (place, low, high, above) in _NUMBERS.items():
        owner, field = _find(params, place)
        default, most = getattr(owner, field), max_positions if high is None else high
        if isinstance(default, int):
            setattr(owner, field, o.integer(name, default, low, most))
        else:
            setattr(owner, field, o.number(name, default, low, most, above=above))
    params.max_frames = min(params.max_frames, longest)
    params.min_frames = min(params.min_frames, params.max_frames)
    chunk = o.take("chunk", _chunk_option(params))
    if isinstance(chunk, str) and chunk == "auto":
        params.chunk = _AUTO_CHUNK
    else:
        params.chunk = min(integer("chunk", chunk, 0, _MANY), max_positions)
    params.cp_recompute = not o.flag("cp_cache", not params.cp_recompute)
    params.ignore_eos = o.flag("ignore_eos", bool(params.ignore_eos))
    params.profile = o.flag("profile", bool(params.profile))
    params.guard = _guard_struct(o.take("guard", None))
    o.done()
    return params


def voice_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the prompt (speaker, language, instruct), and the others."""
    o = Options(options)
    voice = {
        "speaker": o.text("speaker", None),
        "language": o.text("language", "auto") or "auto",
        "instruct": o.text("instruct", None),
    }
    return voice, o.left


def _default_params() -> binding.StreamParams:
    params = binding.StreamParams(struct_size=C.sizeof(binding.StreamParams))
    binding.check(binding.library().kz_stream_params_default(C.byref(params)))
    return params


def _find(params: binding.StreamParams, place: str) -> tuple[C.Structure, str]:
    """The struct and the field of a place such as "talker.top_k"."""
    group, _, field = place.rpartition(".")
    return (getattr(params, group) if group else params), field


def _chunk_option(params: binding.StreamParams) -> Literal["auto"] | int:
    return "auto" if params.chunk == _AUTO_CHUNK else int(params.chunk)


def _guard_struct(guard: Any) -> binding.GuardStruct:
    """The native form of a guard; None: no guard."""
    if guard is None:
        return binding.GuardStruct()
    if not isinstance(guard, Guard):
        raise InvalidInput(f"guard is {guard!r}, expected a Guard or None", param="guard")
    o = Options(dataclasses.asdict(guard))
    return binding.GuardStruct(
        o.number("frames_per_token", 0.0, 0, 1000),
        o.integer("min_frames", 0, 0, _MANY),
        o.number("eos_boost", 0.0, 0, 1000),
        o.integer("repeat_frames", 0, 0, _MANY),
        o.integer("silence_frames", 0, 0, _MANY),
    )


class Options:
    """Keyword options, taken one by one and checked; what is left over is unknown."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.left = dict(options)

    def take(self, name: str, default: Any) -> Any:
        return self.left.pop(name, default)

    def text(self, name: str, default: str | None) -> str | None:
        value = self.take(name, default)
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"{name} is {value!r}, expected a string", param=name)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, (bool, np.bool_)):
            raise InvalidInput(f"{name} is {value!r}, expected True or False", param=name)
        return bool(value)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        return integer(name, self.take(name, default), low, high)

    def number(
        self, name: str, default: float, low: float, high: float, *, above: bool = False
    ) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise InvalidInput(f"{name} is {value!r}, expected a number", param=name)
        try:
            x = float(value)
        except OverflowError:
            x = math.inf
        if not math.isfinite(x) or x < low or x > high or (above and x == low):
            bounds = f"more than {low:g} and at most {high:g}" if above else f"{low:g}..{high:g}"
            raise InvalidInput(f"{name} is {x:g}, expected {bounds}", param=name)
        return x

    def done(self) -> None:
        if self.left:
            raise InvalidInput(
                f"unknown option {sorted(self.left)[0]!r}", param=sorted(self.left)[0]
            )


def one_of(name: str, value: Any, choices: Mapping[str, int]) -> int:
    """What one of several strings stands for."""
    if not isinstance(value, str) or value not in choices:
        expected = " or ".join(repr(choice) for choice in choices)
        raise InvalidInput(f"{name} is {value!r}, expected {expected}", param=name)
    return choices[value]


def integer(name: str, value: Any, low: int, high: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidInput(f"{name} is {value!r}, expected a whole number", param=name)
    if not low <= value <= high:
        raise InvalidInput(f"{name} is {value}, expected {low}..{high}", param=name)
    return int(value)
