"""Request ids: taken from the client or made, kept for the log, returned with the answer."""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kazeia_server.logging_ import current_request_id

__all__ = ["HEADER", "RequestIds"]

HEADER = "x-request-id"
_MAX_CHARS = 128
_ANSWERS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


class RequestIds:
    """ASGI middleware; the outermost, so that refusals and failures carry an id as well.

    An id of 1 to 128 printable ASCII characters is taken as it is, anything else is replaced.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or secrets.token_hex(16)
        header = (HEADER.encode(), request_id.encode())

        async def sending(message: Message) -> None:
            if message["type"] in _ANSWERS:
                others = [h for h in message.get("headers", ()) if h[0].lower() != header[0]]
                message = {**message, "headers": [*others, header]}
            await send(message)

        token = current_request_id.set(request_id)
        try:
            await self._app(scope, receive, sending)
        finally:
            current_request_id.reset(token)


def _given_id(scope: Scope) -> str | None:
    given = [value for name, value in scope["headers"] if name == HEADER.encode()]
    if len(given) != 1 or not 1 <= len(given[0]) <= _MAX_CHARS:
        return None
    return given[0].decode() if all(0x21 <= byte <= 0x7E for byte in given[0]) else None
