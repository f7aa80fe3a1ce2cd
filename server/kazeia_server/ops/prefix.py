"""The path prefix under which a proxy serves this server."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["PathPrefix"]


class PathPrefix:
    """ASGI middleware: tells the application its prefix, whether or not the proxy strips it.

    `prefix` may be written with or without slashes around it.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = "/" + prefix.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path: str = scope["path"]
            if path != self._prefix and not path.startswith(self._prefix + "/"):
                path = self._prefix + path
            scope = {**scope, "root_path": self._prefix, "path": path}
        await self._app(scope, receive, send)
