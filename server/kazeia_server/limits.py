"""ASGI middleware that bounds the size of request bodies."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kazeia_server.errors import PayloadTooLarge, error_body

__all__ = ["BodyLimit"]


class BodyLimit:
    """Refuses bodies of more than `max_bytes`, declared or counted, with 413."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        error = PayloadTooLarge(f"the body may have at most {self._max_bytes} bytes")
        if declared.isdecimal() and int(declared[:20]) > self._max_bytes:
            # The connection cannot be used again: the body is still on its way.
            response = JSONResponse(error_body(error), 413, headers={"connection": "close"})
            await response(scope, receive, send)
            return
        counted = 0

        async def counting() -> Message:
            nonlocal counted
            message = await receive()
            counted += len(message.get("body", b""))
            if counted > self._max_bytes:
                raise error
            return message

        await self._app(scope, counting, send)
