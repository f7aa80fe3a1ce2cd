from __future__ import annotations

import asyncio

import pytest
from asgi import call
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from kazeia_server.ops.cross_site import CrossSiteCheck
from kazeia_server.settings import Settings


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await PlainTextResponse("in")(scope, receive, send)
    else:
        await send({"type": "websocket.accept"})


def outcome(settings: Settings, kind: str, headers: dict[str, str], method: str = "POST") -> object:
    answer = call(CrossSiteCheck(inner, settings), method, "/ws", kind=kind, headers=headers)
    if answer.start["type"] == "websocket.accept":
        return 200
    if answer.status == 403:
        assert answer.error["code"] == "forbidden_origin"
    return answer.status


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        (None, "127.0.0.1:8080", 200),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", 200),
        ("http://LocalHost:8080", "localhost:8080", 200),
        ("https://tts.example", "tts.example", 200),
        ("https://tts.example", "tts.example:443", 200),
        ("http://[::1]:8080", "[::1]:8080", 200),
        ("http://localhost:3000", "localhost:8080", 403),
        ("http://localhost:8080", "127.0.0.1:8080", 403),
        ("https://evil.example", "127.0.0.1:8080", 403),
        ("https://tts.example.evil", "tts.example", 403),
        ("https://evil.example", "", 403),
        ("null", "127.0.0.1:8080", 403),
        ("", "127.0.0.1:8080", 403),
        ("http://127.0.0.1:99999", "127.0.0.1:8080", 403),
        ("http://[::1", "127.0.0.1:8080", 403),
        ("file://", "127.0.0.1:8080", 403),
    ],
)
def test_origins(kind: str, origin: str | None, host: str, status: int) -> None:
    headers = {"host": host}
    if origin is not None:
        headers["origin"] = origin
    assert outcome(Settings(), kind, headers) == status


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_allowed_origins(kind: str) -> None:
    headers = {"host": "127.0.0.1:8080", "origin": "https://app.example"}
    assert outcome(Settings(), kind, headers) == 403
    assert outcome(Settings(cors_origins=("https://app.example",)), kind, headers) == 200
    assert outcome(Settings(cors_origins=("https://other.example",)), kind, headers) == 403
    assert outcome(Settings(cors_origins=("*",)), kind, headers) == 200


def test_behind_a_proxy_that_names_the_host() -> None:
    headers = {
        "host": "127.0.0.1:8080",
        "x-forwarded-host": "tts.example",
        "origin": "https://tts.example",
    }
    assert outcome(Settings(), "websocket", headers) == 200


def test_a_key_makes_origins_irrelevant() -> None:
    headers = {"host": "127.0.0.1:8080", "origin": "https://evil.example"}
    assert outcome(Settings(api_keys=("k",)), "websocket", headers) == 200


def test_reading_is_left_to_cors() -> None:
    headers = {"host": "127.0.0.1:8080", "origin": "https://evil.example"}
    for method in ("GET", "HEAD", "OPTIONS"):
        assert outcome(Settings(), "http", headers, method) == 200


def test_a_server_that_cannot_deny_closes() -> None:
    sent = []

    async def run() -> None:
        async def receive() -> dict[str, str]:
            return {"type": "websocket.connect"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        scope = {"type": "websocket", "headers": [(b"host", b"a"), (b"origin", b"http://b")]}
        await CrossSiteCheck(inner, Settings())(scope, receive, send)  # type: ignore[arg-type]

    asyncio.run(run())
    assert sent == [{"type": "websocket.close", "code": 1008}]
