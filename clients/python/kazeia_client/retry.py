"""When a request that failed is worth another try."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kazeia_client.errors import (
    ConnectionFailed,
    ConnectionLost,
    KazeiaError,
    Unavailable,
    UsageError,
)

__all__ = ["Retry", "RetryPlan", "checked_seconds"]


@dataclass(frozen=True, slots=True)
class Retry:
    """Waits between tries: growing, scattered, and never shorter than the server's Retry-After.

    `budget_s` bounds the seconds waited in all (0: no second try); `base_s` and `max_s` the
    single wait where the server names none.  `waiting` is told the error and the seconds before
    each wait.  `sleep` and `jitter` (0 to 1) are there to be replaced in tests.

    Tried again is what a later try can change: nothing listens yet (connection refused), 429,
    502 and 503, and once a connection that ended without any answer.  Nothing is tried again
    once audio has arrived.
    """

    budget_s: float = 30.0
    base_s: float = 0.5
    max_s: float = 8.0
    waiting: Callable[[KazeiaError, float], None] | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        for seconds in (self.budget_s, self.base_s, self.max_s):
            checked_seconds("budget_s of at least 0, base_s and max_s above 0", seconds)
        if self.base_s <= 0 or self.max_s <= 0:
            raise UsageError("expected budget_s of at least 0, base_s and max_s above 0")


def checked_seconds(name: str, seconds: float) -> float:
    """`seconds`, if a clock can count them.

    Raises UsageError.
    """
    try:
        countable = 0 <= seconds < math.inf  # false for NaN as well
    except TypeError:
        countable = False
    if not countable:
        raise UsageError(f"expected {name}, in finite seconds, got {seconds!r}")
    return seconds


class RetryPlan:
    """The tries of one request."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._tries = 0
        self._waited_s = 0.0
        self._lost = False

    async def wait_after(self, error: KazeiaError) -> None:
        """Return when it is time for the next try; raises `error` when there is none."""
        delay_s = self._delay(error)
        if delay_s is None or self._waited_s + delay_s > self._retry.budget_s:
            raise error
        if self._retry.waiting is not None:
            self._retry.waiting(error, delay_s)
        self._waited_s += delay_s
        self._tries += 1
        await self._retry.sleep(delay_s)

    def _delay(self, error: KazeiaError) -> float | None:
        """Seconds to wait after `error`; None: another try is of no use."""
        asked_s = 0.0
        if isinstance(error, ConnectionLost):
            if self._lost or error.begun:
                return None
            self._lost = True
        elif isinstance(error, ConnectionFailed):
            if not error.transient:
                return None
        elif isinstance(error, Unavailable):
            if not error.should_retry:
                return None
            asked_s = error.retry_after_s or 0.0
        else:
            return None
        grown_s = self._retry.base_s * 2.0 ** min(self._tries, 30)
        half_s = min(self._retry.max_s, grown_s) / 2
        return max(asked_s, half_s) + half_s * self._retry.jitter()
