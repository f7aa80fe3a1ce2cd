"""Keyword options of an utterance: each checked, and named in the error when it is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kazeia_engine import binding
from kazeia_engine.errors import InvalidInput
from kazeia_engine.types import Guard

__all__ = ["Options", "guard_struct", "integer", "one_of", "voice_options"]


def voice_options(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of the prompt (speaker, language, instruct) out of `options`."""
    o = Options(options)
    taken: dict[str, Any] = {
        "speaker": o.text("speaker", None),
        "language": o.text("language", "auto") or "auto",
        "instruct": o.text("instruct", None),
    }
    for name in taken:
        options.pop(name, None)
    return taken


def guard_struct(guard: Guard | None) -> binding.GuardStruct:
    """The native form of a guard; None: no guard."""
    if guard is None:
        return binding.GuardStruct()
    if not isinstance(guard, Guard):
        raise InvalidInput(f"guard is {guard!r}, expected a Guard or None", param="guard")
    o = Options(dataclasses.asdict(guard))
    most = 1 << 30
    return binding.GuardStruct(
        o.number("frames_per_token", 0.0, 0, 1000),
        o.integer("min_frames", 0, 0, most),
        o.number("eos_boost", 0.0, 0, 1000),
        o.integer("repeat_frames", 0, 0, most),
        o.integer("silence_frames", 0, 0, most),
    )


class Options:
    """Keyword options, taken one by one and checked; what is left over is unknown."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._left = dict(options)

    def take(self, name: str, default: Any) -> Any:
        return self._left.pop(name, default)

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
        if self._left:
            raise InvalidInput(
                f"unknown option {sorted(self._left)[0]!r}", param=sorted(self._left)[0]
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
