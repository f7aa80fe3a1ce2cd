"""Time that something may take, however much happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Deadline", "within"]

_ResultT = TypeVar("_ResultT")


class Deadline:
    """So many seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._end = asyncio.get_running_loop().time() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 once it has passed."""
        return max(0.0, self._end - asyncio.get_running_loop().time())


async def within(seconds: float, work: Coroutine[Any, Any, _ResultT], late: Exception) -> _ResultT:
    """The result of `work`; raises `late` where it takes longer."""
    # Not asyncio.wait_for: before Python 3.12 it may swallow the cancellation of this task.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise late
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
