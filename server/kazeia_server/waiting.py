"""Waiting with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["watchdog", "within"]


async def within(work: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Whether `work` ends within `seconds`; it is cancelled if not.  Raises what it raises.

    Unlike asyncio.wait_for before Python 3.12 it never loses the cancellation of the caller.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    if done:
        task.result()
        return True
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait({task})
    return False


@contextmanager
def watchdog(seconds: float, bark: Callable[[], None]) -> Iterator[None]:
    """Call `bark` if the block lasts longer.

    For what must not be cancelled half-way, nor be a task of its own each time.
    """
    waiting = asyncio.get_running_loop().call_later(seconds, bark)
    try:
        yield
    finally:
        waiting.cancel()
