"""How many connections that last may be open at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kazeia_server.errors import Busy

__all__ = ["SessionLimit"]


class SessionLimit:
    """Counts WebSockets and Wyoming connections.  Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.active = 0
        self._ended = asyncio.Event()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Count one connection for as long as the block lasts.

        Raises Busy when `limit` are open.
        """
        if self.active >= self.limit:
            raise Busy(f"{self.limit} connections are open, as many as are served: try later")
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            if not self.active:
                self._ended.set()

    async def all_ended(self) -> None:
        """Wait until none is open."""
        while self.active:
            self._ended.clear()
            await self._ended.wait()
