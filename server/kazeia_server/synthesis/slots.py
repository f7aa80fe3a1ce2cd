"""First-come-first-served admission with a bounded waiting line."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from kazeia_server.errors import Busy, ServerError

__all__ = ["Slots"]


class Slots:
    """`slots` at once, `places` in line.  Belongs to one event loop."""

    def __init__(self, slots: int, places: int) -> None:
        self._free = slots
        self._places = places
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many are in line."""
        return len(self._line)

    async def acquire(self) -> None:
        """Take a slot, waiting in line for it.

        Raises Busy when the line is full.
        """
        if self._free > 0 and not self._line:
            self._free -= 1
            return
        if len(self._line) >= self._places:
            raise Busy("every slot and every place in the queue is taken: try again later")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # release() or refuse() took it out of the line first
                    self._line.remove(turn)
            else:  # the slot, or the refusal, came at the same moment
                if turn.exception() is None:
                    self.release()
            raise

    def release(self) -> None:
        """Give a slot back; the first in line gets it."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def refuse(self, error: ServerError) -> None:
        """Send everybody in line away with `error`."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_exception(error)
