"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kazeia_server.errors import Unauthorized, face_of
from kazeia_server.ops.failures import problem_response
from kazeia_server.settings import Settings

__all__ = ["KEY_TIMEOUT_S", "KeyCheck", "accepts", "authorized", "brought_key", "is_public"]

# Probes, the page with its files and the documentation say nothing that is worth a key; Open
# WebUI asks for the two lists without one.
_PUBLIC_PATHS = frozenset(
    {
        "/",
        "/docs",
        "/favicon.ico",
        "/health",
        "/healthz",
        "/kazeia.js",
        "/openapi.json",
        "/readyz",
        "/v1/audio/models",
        "/v1/audio/voices",
    }
)
# A WebSocket that brought no key has so long to send one: it already has a place.
KEY_TIMEOUT_S = 10.0
_PUBLIC_FOLDERS = ("/docs/", "/web/")
_KEY_HEADERS = ("xi-api-key", "x-api-key")
_KEY_PARAMETERS = ("token", "api_key")
_STATE = "kazeia_authorized"
_BROUGHT = "kazeia_brought_key"


def accepts(settings: Settings, key: str) -> bool:
    """Whether `key` is one of the server's, in a time that tells nothing about how near it is."""
    given = _digest(key)
    found = False
    for known in settings.api_keys:
        found |= hmac.compare_digest(_digest(known), given)
    return found


def authorized(scope: Scope) -> bool:
    """Whether a connection carries an accepted key, or none is required.

    Only what has passed `KeyCheck` can be authorized.  A WebSocket that is not may still send
    its key in its first message.
    """
    return bool(scope.get("state", {}).get(_STATE, False))


def brought_key(scope: Scope) -> bool:
    """Whether a connection that has passed `KeyCheck` carries any key, accepted or not."""
    return bool(scope.get("state", {}).get(_BROUGHT, False))


def is_public(method: str, path: str) -> bool:
    """Whether a route is served without a key; `path` is without the server's prefix."""
    if method not in ("GET", "HEAD"):
        return False
    return path in _PUBLIC_PATHS or path.startswith(_PUBLIC_FOLDERS)


class KeyCheck:
    """ASGI middleware: HTTP without an accepted key gets 401, WebSockets are only marked.

    A key is taken from `Authorization: Bearer`, `xi-api-key`, `x-api-key`, or the query
    parameters `token` and `api_key`, since browsers cannot set headers on a WebSocket.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        keys = list(_given_keys(scope))
        allowed = not self._settings.api_keys or any(accepts(self._settings, key) for key in keys)
        scope.setdefault("state", {}).update({_STATE: allowed, _BROUGHT: bool(keys)})
        if allowed or scope["type"] == "websocket" or _needs_no_key(scope):
            await self._app(scope, receive, send)
            return
        error = Unauthorized.because(given=bool(keys), how="send it as 'Authorization: Bearer KEY'")
        response = problem_response(
            401, error.message, face_of(error).code, headers={"www-authenticate": "Bearer"}
        )
        await response(scope, receive, send)


def _needs_no_key(scope: Scope) -> bool:
    if scope["method"] == "OPTIONS":  # browsers send no key with a pre-flight
        return True
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    if prefix and (path == prefix or path.startswith(prefix + "/")):
        path = path[len(prefix) :] or "/"
    return is_public(scope["method"], path)


def _given_keys(scope: Scope) -> Iterator[str]:
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        yield key.strip()
    for name in _KEY_HEADERS:
        if key := headers.get(name, "").strip():
            yield key
    for name, value in parse_qsl(scope["query_string"].decode("latin-1")):
        if name in _KEY_PARAMETERS:
            yield value


def _digest(key: str) -> bytes:
    """Of one length for every key: comparing them cannot tell how long the right one is."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
