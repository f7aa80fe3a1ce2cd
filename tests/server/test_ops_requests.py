"""Request ids, limits of bodies, sessions, failures."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from asgi import acall, call
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kazeia_server.errors import Busy, PayloadTooLarge
from kazeia_server.logging_ import current_request_id
from kazeia_server.ops.failures import CatchFailures
from kazeia_server.ops.limits import BodyLimit
from kazeia_server.ops.request_ids import RequestIds
from kazeia_server.ops.sessions import SessionLimit


async def says_its_id(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await PlainTextResponse(str(current_request_id.get()))(scope, receive, send)
    else:
        await send({"type": "websocket.accept", "headers": [(b"x-request-id", b"twice")]})


@pytest.mark.parametrize("given", ["a", "req-1:2/3", "~" * 128])
def test_an_id_is_taken_and_returned(given: str) -> None:
    answer = call(RequestIds(says_its_id), headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given == answer.body.decode()


@pytest.mark.parametrize("given", [None, "", "a b", "a\tb", "x" * 129, "né", "a\x7f"])
def test_an_unusable_id_is_replaced(given: str | None) -> None:
    app = RequestIds(says_its_id)
    answers = [
        call(app, headers={} if given is None else {"x-request-id": given}) for _ in range(2)
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert ids[0] != ids[1]
    assert all(len(made) == 32 and made != given for made in ids)
    assert answers[0].body.decode() == ids[0]


def test_a_handshake_gets_the_id_once() -> None:
    answer = call(RequestIds(says_its_id), kind="websocket", headers={"x-request-id": "mine"})
    assert answer.start["headers"] == [(b"x-request-id", b"mine")]


def test_the_id_ends_with_the_request() -> None:
    async def run() -> str | None:
        await acall(RequestIds(says_its_id), headers={"x-request-id": "mine"})
        return current_request_id.get()

    assert asyncio.run(run()) is None


async def reads_all(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


def body(*parts: bytes) -> list[dict[str, Any]]:
    return [
        {"type": "http.request", "body": part, "more_body": n < len(parts)}
        for n, part in enumerate(parts, 1)
    ]


def limited(app: ASGIApp = reads_all, timeout_s: float = 30.0) -> BodyLimit:
    return BodyLimit(app, max_bytes=10, timeout_s=timeout_s)


def test_bodies_within_the_limit() -> None:
    assert call(limited(), "POST", incoming=body(b"12345", b"67890")).body == b"10"


def test_a_body_declared_too_large_is_not_read() -> None:
    answer = call(limited(), "POST", headers={"content-length": "11"}, incoming=[])
    assert answer.status == 413
    assert answer.error["code"] == "payload_too_large"
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("declared", ["9" * 5000, "11"])
def test_declared_lengths_of_any_size(declared: str) -> None:
    assert call(limited(), "POST", headers={"content-length": declared}, incoming=[]).status == 413


def test_a_body_that_grows_too_large() -> None:
    with pytest.raises(PayloadTooLarge):
        call(limited(), "POST", incoming=body(b"12345", b"67890", b"1"))


def test_a_body_that_does_not_arrive() -> None:
    unfinished = body(b"1", b"2")[:1]
    with pytest.raises(HTTPException) as caught:
        call(limited(timeout_s=0.05), "POST", incoming=unfinished)
    assert caught.value.status_code == 408


def test_waiting_for_a_client_to_leave_has_no_limit() -> None:
    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        with pytest.raises(asyncio.TimeoutError):  # by this test, not by the middleware
            await asyncio.wait_for(receive(), 0.3)
        await PlainTextResponse("waited")(scope, receive, send)

    assert call(limited(waits, timeout_s=0.05), "POST", incoming=body(b"1")).body == b"waited"


def test_sessions_are_counted() -> None:
    limit = SessionLimit(2)
    with limit.session():
        with limit.session():
            with pytest.raises(Busy, match="2 connections"):
                with limit.session():
                    raise AssertionError
            assert limit.active == 2
        with pytest.raises(ValueError, match="inside"), limit.session():
            raise ValueError("inside")
        assert limit.active == 1
    assert limit.active == 0


def test_the_end_of_all_sessions_is_noticed() -> None:
    async def run() -> None:
        limit = SessionLimit(2)
        await limit.all_ended()
        with limit.session():
            ended = asyncio.ensure_future(limit.all_ended())
            with limit.session():
                pass
            await asyncio.sleep(0)
            assert not ended.done()
        await asyncio.wait_for(ended, 5)

    asyncio.run(run())


def test_a_bug_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("secret detail")

    logger = logging.getLogger("kazeia_server")
    logger.addHandler(caplog.handler)
    try:
        answer = call(RequestIds(CatchFailures(broken)))
    finally:
        logger.removeHandler(caplog.handler)
    assert answer.status == 500
    assert answer.error["code"] == "internal_error"
    assert "secret" not in json.dumps(answer.error)
    assert "x-request-id" in answer.headers
    assert "secret detail" in caplog.text


def test_a_bug_after_the_start_is_passed_on() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise KeyError("late")

    with pytest.raises(KeyError):
        call(CatchFailures(broken))
