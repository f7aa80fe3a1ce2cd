"""HTTP connections that do not wait for ever, nor keep for ever what never ends."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kazeia_server.logging_ import logger

__all__ = ["BoundedHttp"]

_MAX_HEAD_BYTES = 64 << 10
_HEAD_TIMEOUT_S = 20.0


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol, which by itself bounds neither the time nor the size of a request head.

    A connection on which no request begins is closed after one to two times `head_timeout_s`; one
    whose request line and headers exceed `max_head_bytes` is closed at once.
    """

    head_timeout_s = _HEAD_TIMEOUT_S
    max_head_bytes = _MAX_HEAD_BYTES

    _timer: asyncio.TimerHandle | None = None
    _seen: RequestResponseCycle | None = None  # the request of the last look
    _in_head = True
    _heads = 0  # complete ones
    _head_bytes = 0  # of the one that is not

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_timeout_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_looking()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head, heads = self._in_head, self._heads
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # it has become a WebSocket
            self._stop_looking()
        elif was_in_head and heads == self._heads and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.max_head_bytes:
                logger.warning("a request head of more than %d bytes", self.max_head_bytes)
                self.send_400_response("Request head too large.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._heads += 1
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def _look(self) -> None:
        """Close the connection if nothing has been asked for since the last look."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first
        if cycle is self._seen and (cycle is None or cycle.response_complete):
            self.transport.close()
            return
        self._seen = cycle
        self._timer = self.loop.call_later(self.head_timeout_s, self._look)

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
