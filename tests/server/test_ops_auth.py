from __future__ import annotations

import pytest
from asgi import call
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from kazeia_server.ops.auth import KeyCheck, accepts, authorized, brought_key, is_public
from kazeia_server.settings import Settings

KEYS = Settings(api_keys=("first-key", "sécond"))


class Inner:
    """Says 200, and remembers whether it was authorized."""

    def __init__(self) -> None:
        self.authorized: list[bool] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.authorized.append(authorized(scope))
        if scope["type"] == "http":
            await PlainTextResponse("in")(scope, receive, send)
        else:
            await send({"type": "websocket.accept"})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("first-key", True),
        ("sécond", True),
        ("", False),
        ("first-ke", False),
        ("first-key2", False),
        ("FIRST-KEY", False),
        ("first-key,sécond", False),
        ("\ud800", False),
        ("x" * 100_000, False),
    ],
)
def test_accepts(key: str, expected: bool) -> None:
    assert accepts(KEYS, key) is expected


def test_no_key_is_accepted_where_there_are_none() -> None:
    assert not accepts(Settings(), "")


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"authorization": "Bearer first-key"}, ""),
        ({"authorization": "bearer  first-key "}, ""),
        ({"xi-api-key": "first-key"}, ""),
        ({"x-api-key": "first-key"}, ""),
        ({}, "token=first-key"),
        ({}, "model=x&api_key=first%2Dkey"),
        ({"authorization": "Bearer dummy"}, "token=first-key"),
    ],
)
def test_every_place_for_a_key(headers: dict[str, str], query: str) -> None:
    inner = Inner()
    app = KeyCheck(inner, KEYS)
    answer = call(app, "POST", "/synthesize", headers=headers, query=query)
    assert (answer.status, inner.authorized) == (200, [True])
    call(app, kind="websocket", path="/ws/synthesize", headers=headers, query=query)
    assert inner.authorized == [True, True]


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({}, ""),
        ({"authorization": "first-key"}, ""),
        ({"authorization": "Basic first-key"}, ""),
        ({"authorization": "Bearer"}, ""),
        ({"authorization": "Bearer wrong"}, "token=wrong&token="),
        ({"xi-api-key": ""}, ""),
        ({}, "key=first-key"),
        ({}, "token=first-key%00"),
    ],
)
def test_without_an_accepted_key(headers: dict[str, str], query: str) -> None:
    inner = Inner()
    app = KeyCheck(inner, KEYS)
    answer = call(app, "POST", "/synthesize", headers=headers, query=query)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.error["code"] == "invalid_api_key"
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert inner.authorized == []
    call(app, kind="websocket", path="/ws/synthesize", headers=headers, query=query)
    assert inner.authorized == [False]


NEEDED = "an API key is required: send it as 'Authorization: Bearer KEY'"
NOT_ACCEPTED = "the API key that was sent is not accepted"


@pytest.mark.parametrize(
    ("headers", "query", "given"),
    [
        ({}, "", False),
        ({"authorization": "wrong"}, "", False),
        ({"authorization": "Basic wrong"}, "", False),
        ({"authorization": "Bearer "}, "", False),
        ({"xi-api-key": " "}, "", False),
        ({}, "token=&api_key=", False),
        ({"authorization": "Bearer wrong"}, "", True),
        ({"authorization": "bearer wrong"}, "", True),
        ({"xi-api-key": "wrong"}, "", True),
        ({"x-api-key": "wrong"}, "", True),
        ({}, "token=wrong", True),
        ({}, "a=b&api_key=wrong", True),
    ],
)
def test_a_wrong_key_is_not_a_missing_one(headers: dict[str, str], query: str, given: bool) -> None:
    app = KeyCheck(Inner(), KEYS)
    error = call(app, "POST", "/synthesize", headers=headers, query=query).error
    assert error["message"] == (NOT_ACCEPTED if given else NEEDED)
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    seen: list[bool] = []

    async def socket(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(brought_key(scope))
        await send({"type": "websocket.accept"})

    call(KeyCheck(socket, KEYS), kind="websocket", headers=headers, query=query)
    assert seen == [given]


def test_without_keys_everybody_is_authorized() -> None:
    inner = Inner()
    assert call(KeyCheck(inner, Settings()), "POST", "/synthesize").status == 200
    assert inner.authorized == [True]


def test_what_has_not_been_checked_is_not_authorized() -> None:
    assert not authorized({"type": "websocket"})
    assert not authorized({"type": "websocket", "state": {}})


@pytest.mark.parametrize(
    ("method", "path", "root", "status"),
    [
        ("GET", "/", "", 200),
        ("GET", "/health", "", 200),
        ("GET", "/readyz", "", 200),
        ("GET", "/web/app.js", "", 200),
        ("GET", "/v1/audio/voices", "", 200),
        ("POST", "/v1/audio/voices", "", 401),
        ("OPTIONS", "/synthesize", "", 200),
        ("GET", "/metrics", "", 401),
        ("GET", "/v1/models", "", 401),
        ("GET", "/health/../metrics", "", 401),
        ("GET", "/web", "", 401),
        ("GET", "/tts/health", "/tts", 200),
        ("GET", "/tts", "/tts", 200),
        ("GET", "/health", "/tts", 200),
        ("GET", "/ttshealth", "/tts", 401),
        ("GET", "/tts/metrics", "/tts", 401),
    ],
)
def test_public_places(method: str, path: str, root: str, status: int) -> None:
    assert call(KeyCheck(Inner(), KEYS), method, path, root=root).status == status


def test_only_reading_is_public() -> None:
    assert is_public("GET", "/health")
    assert is_public("HEAD", "/web/app.js")
    assert not is_public("DELETE", "/health")
