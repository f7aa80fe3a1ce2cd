"""Web pages of other sites must not use a server that asks for no key.

A browser lets any page open a WebSocket to, or post a plain form at, any address the browser can
reach, also at 127.0.0.1; CORS only keeps the page from reading an HTTP answer.  The browser says
with the `Origin` header which site a request comes from, and a page cannot forge it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kazeia_server.ops.failures import problem_response
from kazeia_server.settings import PREFIX, Settings

__all__ = ["CrossSiteCheck"]

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class CrossSiteCheck:
    """ASGI middleware: WebSockets and changing requests of foreign origins get 403.

    An origin is the server's own if its host and port are those of `Host`, or of
    `X-Forwarded-Host`, which a page of another site cannot set either.  Where keys are required
    the key decides, and no origin is looked at.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._asked = not settings.api_keys and "*" not in settings.cors_origins
        self._allowed = frozenset(settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if (
            self._asked
            and (kind == "websocket" or (kind == "http" and scope["method"] not in _SAFE_METHODS))
            and not self._accepts(Headers(scope=scope))
        ):
            await self._refuse(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _accepts(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or origin in self._allowed:  # None: not a browser
            return True
        own = (headers.get("host"), headers.get("x-forwarded-host"))
        return any(host is not None and _same_site(origin, host) for host in own)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope)["origin"]
        response = problem_response(
            403,
            f"pages of {ascii(origin)[:100]} may not use this server: its operator can allow them "
            f"by {PREFIX}CORS_ORIGINS, or require a key",
            "forbidden_origin",
        )
        if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
            await response(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def _same_site(origin: str, host: str) -> bool:
    """Whether a page of `origin` came from the server that is addressed as `host`."""
    try:
        page = urlsplit(origin)
        server = urlsplit(f"{page.scheme}://{host.strip()}")
        default = _DEFAULT_PORTS.get(page.scheme)
        return (
            page.hostname is not None
            and page.hostname == server.hostname
            and (page.port or default) == (server.port or default)
        )
    except ValueError:  # no number of a port, or half an IPv6 address
        return False
