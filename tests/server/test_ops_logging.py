from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgi import call
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from kazeia_server.logging_ import configure_logging, logger
from kazeia_server.ops.request_ids import RequestIds

Written = Callable[[], str]
NAMES = ("kazeia_server", "uvicorn", "uvicorn.error", "uvicorn.access")


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """Reads what went to standard error; the loggers are as before afterwards."""
    before = {
        name: (log.handlers[:], log.propagate, log.level, log.filters[:])
        for name in NAMES
        for log in [logging.getLogger(name)]
    }
    yield lambda: capsys.readouterr().err
    for name, (handlers, propagate, level, filters) in before.items():
        log = logging.getLogger(name)
        log.handlers, log.propagate, log.filters = handlers, propagate, filters
        log.setLevel(level)


def entries(written: Written) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written().splitlines()]


def test_json_is_one_object_a_line(written: Written) -> None:
    configure_logging("info", "json")
    logger.info("two\nlines of %s", "ünïcode", extra={"audio_s": 1.5, "voice": None})
    logger.debug("not at this level")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed")
    first, second = entries(written)
    assert first["message"] == "two\nlines of ünïcode"
    assert (first["level"], first["logger"]) == ("info", "kazeia_server")
    assert (first["audio_s"], first["voice"]) == (1.5, None)
    assert first["time"].endswith("Z")
    assert "request_id" not in first
    assert "ValueError: why" in second["exception"]


def test_what_json_does_not_know_is_written_as_text(written: Written) -> None:
    configure_logging("info", "json")
    logger.info("odd", extra={"thing": object(), "half": "\ud800"})
    assert "object at" in written()


async def logs(scope: Scope, receive: Receive, send: Send) -> None:
    logger.info("inside")
    await PlainTextResponse("ok")(scope, receive, send)


def test_the_request_id_is_in_the_record(written: Written) -> None:
    configure_logging("info", "json")
    call(RequestIds(logs), headers={"x-request-id": "id-1"})
    logger.info("outside")
    inside, outside = entries(written)
    assert inside["request_id"] == "id-1"
    assert "request_id" not in outside


def test_the_console_has_it_too(written: Written) -> None:
    configure_logging("info")
    call(RequestIds(logs), headers={"x-request-id": "id-1"})
    logger.warning("outside")
    first, second = written().splitlines()
    assert first.endswith("INFO    inside [id-1]")
    assert second.endswith("WARNING outside")


@pytest.mark.parametrize("style", ["console", "json"])
def test_no_query_is_logged(written: Written, style: Any) -> None:
    configure_logging("debug", style)
    logging.getLogger("uvicorn.access").info(
        '%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", "/metrics?token=secret", "1.1", 200
    )
    logging.getLogger("uvicorn.error").info(
        '%s - "WebSocket %s" %d', "127.0.0.1:1", "/ws?token=secret", 403
    )
    logging.getLogger("uvicorn.error").debug("< TEXT '%s'", "secret")
    text = written()
    assert "/metrics" in text
    assert "secret" not in text


def test_configuring_twice_writes_once(written: Written) -> None:
    configure_logging("info")
    configure_logging("info")
    logger.info("once")
    assert len(written().splitlines()) == 1


def test_levels(written: Written) -> None:
    configure_logging("warning")
    logger.info("no")
    logging.getLogger("uvicorn.error").info("no")
    logging.getLogger("uvicorn.error").warning("yes")
    assert written().count("\n") == 1


def test_what_clients_sent_cannot_forge_lines(written: Written) -> None:
    configure_logging("info", "console")
    logger.info("voice %s", "x\n2026-11-29 ERROR forged\r\x1b[2J\x85\u2028\u202e")
    (line,) = written().split("\n")[:-1]
    assert "\\x0a2026" in line
    assert not any(char in line for char in "\r\x1b\x85\u2028\u202e")
    assert len(line.splitlines()) == 1
