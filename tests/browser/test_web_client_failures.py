"""The module of clients/web in front of servers that do not do what they should."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import create_server
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.server import ServerConnection, serve

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from conftest import OpenPage, Site

START = json.dumps({"type": "audio.start", "sample_rate": 24000, "voice": "a", "source": "b"})
DONE = json.dumps({"type": "audio.done", "ended": "eos", "warnings": []})
OVER = json.dumps({"type": "session.done", "utterance_index": 0})
SOON = 0.3  # seconds: the patience of the pages that test it


@contextmanager
def answering(handle: Callable[[ServerConnection], None]) -> Iterator[str]:
    """A WebSocket server; gives its address."""
    with serve(handle, "127.0.0.1", 0, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, name="failing server")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(10)


def module(open_page: OpenPage, site: Site, server: str, options: str = "{}", **more: Any) -> Page:
    """An empty page with `speech`, which speaks with `server`."""
    page = open_page(site.origin + "/empty.html", ready=False, **more)
    page.evaluate(
        f"""async ([server, origin]) => {{
          window.kazeia = await import(origin + "/kazeia/kazeia.js");
          window.speech = new kazeia.Speech(server, {options});
          window.say = (text) => speech.speak(text).finished.then(
            (stats) => stats?.ended ?? null, (error) => [error.name, error.code]);
        }}""",
        [server, site.origin],
    )
    page.mouse.click(5, 5)
    return page


def kinds_until(connection: ServerConnection, last: str) -> list[str]:
    """Types of the messages that come, up to one of type `last`."""
    kinds: list[str] = []
    while last not in kinds:
        kinds.append(json.loads(connection.recv())["type"])
    return kinds


def speak(connection: ServerConnection) -> None:
    for message in (START, b"\0\0" * 240, DONE, OVER):
        connection.send(message)


@pytest.mark.parametrize(
    "frame",
    [
        "garbage",
        "null",
        "[]",
        "{}",
        '"text"',
        '{"type": 5}',
        '{"type": "audio.start"}',
        '{"type": "error"}',
        b"odd",
    ],
)
def test_a_frame_that_is_none_of_the_protocol(
    frame: str | bytes, open_page: OpenPage, site: Site
) -> None:
    bad = [frame]

    def handle(connection: ServerConnection) -> None:
        kinds_until(connection, "input.done")
        for message in bad:
            connection.send(message)
            bad.clear()
            for _ in connection:
                pass
            return
        speak(connection)
        for _ in connection:
            pass

    with answering(handle) as url:
        page = module(open_page, site, url)
        assert page.evaluate("say('Hello.')") == ["SpeechError", "unexpected_answer"]
        assert page.evaluate("[speech.speaking, speech._client.active]") == [False, False]
        assert page.evaluate("say('Again.')") == "eos"


def test_a_message_of_a_later_version_is_passed_over(open_page: OpenPage, site: Site) -> None:
    def handle(connection: ServerConnection) -> None:
        kinds_until(connection, "input.done")
        connection.send('{"type": "of.a.later.version"}')
        speak(connection)
        kinds_until(connection, "nothing")

    with answering(handle) as url:
        assert module(open_page, site, url).evaluate("say('Hello.')") == "eos"


def test_a_silent_server_is_given_up(open_page: OpenPage, site: Site) -> None:
    seen: list[str] = []

    def handle(connection: ServerConnection) -> None:
        for message in connection:
            seen.append(json.loads(message)["type"])

    with answering(handle) as url:
        page = module(open_page, site, url, f"{{ answerTimeout: {SOON} }}")
        assert page.evaluate("say('Hello.')") == ["SpeechError", "no_answer"]
        assert seen == ["session.config", "input.text", "input.done", "ping"]


def test_a_slow_server_that_lives_is_waited_for(open_page: OpenPage, site: Site) -> None:
    def handle(connection: ServerConnection) -> None:
        kinds_until(connection, "input.done")
        for _ in range(4):
            kinds_until(connection, "ping")
            connection.send('{"type": "pong"}')
        speak(connection)
        kinds_until(connection, "nothing")

    with answering(handle) as url:
        page = module(open_page, site, url, f"{{ answerTimeout: {SOON} }}")
        assert page.evaluate("say('Hello.')") == "eos"


def test_a_server_that_accepts_and_says_nothing(open_page: OpenPage, site: Site) -> None:
    with create_server(("127.0.0.1", 0)) as listening:  # the system accepts; nobody reads
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        options = f"{{ answerTimeout: {SOON} }}"
        page = module(open_page, site, url, options, allow=("WebSocket connection",))
        assert page.evaluate("say('Hello.')") == ["SpeechError", "no_answer"]
        assert page.evaluate("speech.voices().catch((error) => error.code)") == "no_answer"


@pytest.mark.parametrize("lives", [False, True])
def test_a_cancel_that_is_never_answered(lives: bool, open_page: OpenPage, site: Site) -> None:
    connections: list[list[str]] = []

    def handle(connection: ServerConnection) -> None:
        seen: list[str] = []
        connections.append(seen)
        for message in connection:
            seen.append(json.loads(message)["type"])
            if seen[-1] == "input.text" and len(connections) == 1:
                connection.send(START)
            elif seen[-1] == "input.done" and len(connections) == 2:
                speak(connection)
            elif seen[-1] == "ping" and lives:
                connection.send('{"type": "pong"}')

    with answering(handle) as url:
        page = module(open_page, site, url, f"{{ answerTimeout: {SOON} }}")
        page.evaluate(
            """() => {
              window.first = say("One.");
              return new Promise((go) => speech.addEventListener("start", () => go()));
            }"""
        )
        assert page.evaluate("say('Two.')") == "eos"
        assert page.evaluate("first") is None
        assert len(connections) == 2
        assert "input.cancel" in connections[0]


def test_a_key_that_cannot_be_had(open_page: OpenPage, site: Site) -> None:
    def handle(connection: ServerConnection) -> None:
        kinds_until(connection, "input.done")
        speak(connection)
        kinds_until(connection, "nothing")

    with answering(handle) as url:
        options = "{ key: () => { if (!window.has) throw new Error('locked'); return 'k'; } }"
        page = module(open_page, site, url, options)
        assert page.evaluate("say('Hello.')") == ["SpeechError", "key_failed"]
        assert page.evaluate("speech.voices().catch((e) => [e.code, e.message])") == [
            "key_failed",
            "The key could not be had: Error: locked",
        ]
        page.evaluate("window.has = true")
        assert page.evaluate("say('Hello.')") == "eos"


def test_a_long_text_goes_in_pieces(open_page: OpenPage, site: Site) -> None:
    got: list[str] = []

    def handle(connection: ServerConnection) -> None:
        for message in connection:
            assert len(message) <= 256 * 1024
            fields = json.loads(message)
            if fields["type"] == "input.text":
                got.append(fields["text"])
            elif fields["type"] == "input.done":
                speak(connection)

    with answering(handle) as url:
        page = module(open_page, site, url)
        assert page.evaluate("say('a' + '\\u{1F600}'.repeat(20000))") == "eos"
        assert "".join(got) == "a" + "\U0001f600" * 20000
        assert [len(piece.encode("utf-16-le")) // 2 for piece in got] == [16383, 16384, 7234]


def test_a_message_that_was_too_long_is_told_so(open_page: OpenPage, site: Site) -> None:
    def handle(connection: ServerConnection) -> None:
        kinds_until(connection, "input.done")
        connection.close(1009)

    with answering(handle) as url:
        page = module(open_page, site, url)
        assert page.evaluate("say('Hello.')") == ["SpeechError", "payload_too_large"]


@contextmanager
def voices_answered(status: int, kind: str | None, body: bytes, cors: bool = True) -> Iterator[str]:
    """A web server with one answer to every request but /health."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            health = self.path == "/health"
            self.send_response(200 if health else status)
            if cors or health:
                self.send_header("access-control-allow-origin", "*")
            if kind is not None:
                self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="voices")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


JSON = "application/json"


@pytest.mark.parametrize(
    ("status", "kind", "body", "told"),
    [
        (502, "text/html", b"<h1>Bad Gateway</h1>", ["unexpected_answer", 502, "text/html"]),
        (200, "text/html", b"<h1>Welcome</h1>", ["unexpected_answer", 200, "text/html"]),
        (401, JSON, b"null", ["unexpected_answer", 401, JSON]),
        (500, None, b"", ["unexpected_answer", 500, "without a type"]),
        (200, JSON, b"{}", ["unexpected_answer", 200, JSON]),
        (200, JSON, b"[]", ["unexpected_answer", 200, JSON]),
        (400, JSON, b'{"error": "x"}', ["unexpected_answer", 400, JSON]),
        (401, JSON, b'{"error": {"code": "invalid_api_key"}}', ["invalid_api_key", 401, "HTTP"]),
    ],
)
def test_what_is_no_list_of_voices(
    status: int, kind: str | None, body: bytes, told: list[Any], open_page: OpenPage, site: Site
) -> None:
    with voices_answered(status, kind, body) as url:
        page = module(open_page, site, url, allow=("Failed to load resource",))
        tell = "({ name, code, status, message }) => [name, code, status, message]"
        name, code, got, message = page.evaluate(f"speech.voices().catch({tell})")
        assert name == "SpeechError"
        assert [code, got] == told[:2]
        assert told[2] in message


def test_an_answer_that_may_not_be_read_is_no_matter_of_sockets(
    open_page: OpenPage, site: Site
) -> None:
    with voices_answered(502, "text/html", b"", cors=False) as url:
        page = module(open_page, site, url, allow=("CORS", "Failed to load resource"))
        told = page.evaluate("speech.voices().catch((error) => [error.code, error.message])")
        assert told[0] == "unexpected_answer"
        assert "answers, but what it says of its voices cannot be read" in told[1]
