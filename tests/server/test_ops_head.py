from __future__ import annotations

import asyncio

import pytest
from asgi import Answer, acall, call
from fake_voice import FakeVoice
from fastapi.routing import APIRoute
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kazeia_server import app as application
from kazeia_server.ops.head import HeadAsGet
from kazeia_server.settings import Settings

EXAMPLES = {
    "/docs/{name}": "/docs/swagger-ui.css",
    "/v1/models/{model:path}": "/v1/models/tts-1",
    "/v1/voices/{voice_id}": "/v1/voices/anna",
    "/web/kazeia/{name}": "/web/kazeia/kazeia.js",
    "/web/{name}": "/web/app.js",
}
# Not the same twice, or none of the answer itself.
CHANGING = {b"x-request-id", b"date", b"last-modified"}


def served_by_get() -> list[str]:
    """A path for every route of the application that is served by GET."""
    app = application.create_app(Settings())
    routes = [route for door in application._DOORS for route in door.router.routes]
    routes += [route for route in app.routes if isinstance(route, Route)]
    return sorted(
        EXAMPLES.get(route.path, route.path)
        for route in routes
        if isinstance(route, (APIRoute, Route)) and "GET" in (route.methods or ())
    )


def answers(path: str, *methods: str) -> list[Answer]:
    async def ask() -> list[Answer]:
        app = application.create_app(Settings(wyoming_port=None), load=lambda _: FakeVoice())
        async with app.router.lifespan_context(app):
            assert await app.state.service.settled() == "ready"
            return [await acall(app, method, path) for method in methods]

    return asyncio.run(asyncio.wait_for(ask(), 20))


def test_every_route_is_looked_at() -> None:
    paths = served_by_get()
    assert {"/", "/docs", "/docs/swagger-ui.css", "/openapi.json", "/v1/models"} <= set(paths)
    assert {"/metrics", "/readyz", "/web/kazeia/kazeia.js"} <= set(paths)
    assert not [path for path in paths if "{" in path]


@pytest.mark.parametrize("path", served_by_get())
def test_head_is_get_without_the_body(path: str) -> None:
    get, head = answers(path, "GET", "HEAD")
    assert (get.status, head.status) == (200, 200)
    assert get.body
    assert head.body == b""

    def stays(answer: Answer) -> list[tuple[bytes, bytes]]:
        return sorted(pair for pair in answer.start["headers"] if pair[0] not in CHANGING)

    if path != "/metrics":  # its numbers change
        assert stays(head) == stays(get)
        assert int(head.headers["content-length"]) == len(get.body)
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", ["/synthesize", "/v1/audio/speech", "/ws/synthesize", "/nothing"])
def test_where_get_is_not_served_head_is_not_either(path: str) -> None:
    get, head = answers(path, "GET", "HEAD")
    assert head.status == get.status
    assert head.status in (404, 405)
    assert head.body == b""
    assert head.headers["content-length"] == str(len(get.body))


def test_other_methods_are_told_what_is_served() -> None:
    (answer,) = answers("/v1/models", "DELETE")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"
    assert answer.error["message"] == "DELETE is not served here: expected GET, HEAD"


async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
    async def parts():  # type: ignore[no-untyped-def]
        yield b"one"
        yield b"two"

    assert scope["method"] != "HEAD"
    await StreamingResponse(parts())(scope, receive, send)


@pytest.mark.parametrize(
    ("method", "body"), [("HEAD", b""), ("GET", b"onetwo"), ("POST", b"onetwo")]
)
def test_only_the_body_of_head_is_dropped(method: str, body: bytes) -> None:
    answer = call(HeadAsGet(streaming), method)
    assert (answer.status, answer.body) == (200, body)
    assert not answer.messages[-1]["more_body"]
