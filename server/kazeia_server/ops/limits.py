"""ASGI middleware that bounds request bodies in size and time."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kazeia_server.errors import PayloadTooLarge
from kazeia_server.ops.failures import error_response

__all__ = ["BodyLimit"]


class BodyLimit:
    """Refuses bodies of more than `max_bytes`, declared or counted, with 413.

    A body that has not arrived `timeout_s` after it was first asked for gets 408.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        error = PayloadTooLarge(f"the body may have at most {self._max_bytes} bytes")
        if declared.isdecimal() and int(declared[:20]) > self._max_bytes:
            response = error_response(error)
            # The connection cannot be used again: the body is still on its way.
            response.headers["connection"] = "close"
            await response(scope, receive, send)
            return
        body = _Body(receive, self._max_bytes, self._timeout_s, error)
        await self._app(scope, body.receive, send)


class _Body:
    """The incoming side of one request."""

    def __init__(
        self, receive: Receive, max_bytes: int, timeout_s: float, too_large: PayloadTooLarge
    ) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._too_large = too_large
        self._counted = 0
        self._deadline: float | None = None
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:  # what still comes is the news that the client has left
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._timeout_s
        # Not wait_for: before Python 3.12 it may swallow the cancellation of this task.
        receiving = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({receiving}, timeout=max(0.0, self._deadline - now))
            if not receiving.done():
                raise HTTPException(
                    408,
                    f"the body did not arrive within {self._timeout_s:g} s",
                    headers={"connection": "close"},
                )
            message = receiving.result()
        finally:
            receiving.cancel()
        self._counted += len(message.get("body", b""))
        if self._counted > self._max_bytes:
            raise self._too_large
        self._complete = not message.get("more_body", False)
        return message
