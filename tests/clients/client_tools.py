"""What the tests of the client share."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fake_voice import FakeVoice
from websockets.sync.server import ServerConnection, serve

from kazeia_client import Retry
from kazeia_server.audio.pcm import pcm16


class Naps:
    """In place of sleeping: notes how long, and does something that time would have brought."""

    def __init__(self, meanwhile: Callable[[int], None] = lambda n: None) -> None:
        self.naps: list[float] = []
        self._meanwhile = meanwhile

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        await asyncio.to_thread(self._meanwhile, len(self.naps))

    def retry(self, jitter: float = 0.0, **options: float) -> Retry:
        return Retry(sleep=self.sleep, jitter=lambda: jitter, **options)


def spoken(voice: FakeVoice, n_chunks: int, stream: int = 0) -> bytes:
    """The PCM of a stream of the voice."""
    return b"".join(pcm16(voice.streams[stream].samples(n)) for n in range(n_chunks))


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def scripted(*answers: Answer | None) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server that gives these answers, one a request; None: it hangs up without one.

    Yields its address and the paths that were asked for.
    """
    left = list(answers)
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = left.pop(0)
            if answer is None:
                self.close_connection = True
                return
            status, headers, body = answer
            self.send_response(status)
            if "content-length" not in headers:
                self.send_header("content-length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = headers.get("connection") == "close"

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


START: dict[str, Any] = {
    "type": "audio.start",
    "utterance_index": 0,
    "format": "pcm",
    "sample_rate": 24_000,
    "channels": 1,
}
DONE: dict[str, Any] = {
    "type": "audio.done",
    "utterance_index": 0,
    "ended": "eos",
    "audio_s": 0.1,
    "frames": 1,
    "n_chunks": 1,
}
OVER: dict[str, Any] = {"type": "session.done", "utterance_index": 0}
SHORT = b"\1\2\3\4"


@contextmanager
def scripted_socket(handler: Callable[[ServerConnection], None], **options: Any) -> Iterator[int]:
    """A WebSocket server; yields its port."""
    with serve(handler, "127.0.0.1", 0, **options) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield listening.socket.getsockname()[1]
        finally:
            listening.shutdown()
            thread.join(5)


def answering(*frames: str | bytes | dict[str, Any]) -> Callable[[ServerConnection], None]:
    """A handler that says these things when a text is complete."""

    def handler(connection: ServerConnection) -> None:
        for data in connection:
            kind = json.loads(data)["type"]
            if kind == "ping":
                connection.send('{"type": "pong"}')
            elif kind == "input.done":
                for frame in frames:
                    connection.send(json.dumps(frame) if isinstance(frame, dict) else frame)

    return handler


serve_short = answering(START, SHORT, DONE, OVER)
