"""Data that others wrote: their numbers within bounds, their JSON without surprises."""

from __future__ import annotations

import json
import math

__all__ = ["UNUSABLE", "number", "optional_text", "parsed", "whole"]

# What reading data of an unexpected shape raises.
UNUSABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)

_MOST = 1e12  # seconds, bytes or counts beyond this are a mistake


def parsed(data: str | bytes) -> object:
    """A JSON document.

    Raises ValueError, also for one that is nested too deeply to be read.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def number(value: object) -> float:
    """A finite number from 0, or the words for one, as in a header.

    Raises ValueError.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected a number, got {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not 0 <= found <= _MOST:  # false for NaN as well
        raise ValueError(f"expected a number from 0 to {_MOST:g}, got {str(found)[:40]}")
    return found


def whole(value: object) -> int:
    """A whole number from 0, or the words for one.

    Raises ValueError.
    """
    found = number(value)
    if not found.is_integer():
        raise ValueError(f"expected a whole number, got {found:g}")
    return int(found)


def optional_text(value: object) -> str | None:
    """Text, if there is any."""
    return value if isinstance(value, str) and value else None
