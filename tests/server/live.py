"""A real server on a free loopback port, in a thread of the test process."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fake_voice import FakeStream, FakeVoice
from websockets.sync.client import ClientConnection, connect

from kazeia_server.app import create_app
from kazeia_server.serving import SpeechServer, server_config
from kazeia_server.settings import Settings
from kazeia_server.synthesis.service import SynthesisService
from kazeia_server.voices.backend import SynthesisBackend


class Live:
    """A running server."""

    def __init__(self, server: uvicorn.Server, service: SynthesisService) -> None:
        self.server = server
        self.service = service
        self.port: int = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.ws_url = f"ws://127.0.0.1:{self.port}/ws/synthesize"

    def connect(self, **options: Any) -> ClientConnection:
        options.setdefault("open_timeout", 10)
        options.setdefault("close_timeout", 5)
        return connect(self.ws_url, proxy=None, **options)

    def post(self, body: Any, timeout: float = 20.0, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers.setdefault("content-type", "application/json")
        with httpx.Client(trust_env=False) as client:
            return client.post(
                f"{self.url}/synthesize", content=content, headers=headers, timeout=timeout
            )

    def get(self, path: str) -> httpx.Response:
        with httpx.Client(trust_env=False) as client:
            return client.get(self.url + path, timeout=5)


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this never came true"
        time.sleep(0.005)


def stalled_client(live: Live, path: str, *messages: dict[str, Any]) -> socket.socket:
    """A WebSocket that sends `messages` and then never reads."""
    raw = socket.create_connection(("127.0.0.1", live.port), timeout=10)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.sendall(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert b"101" in raw.recv(4096)
    for message in messages:
        data = json.dumps(message).encode()
        raw.sendall(bytes([0x81, 0x80 | len(data)]) + b"\0\0\0\0" + data)  # masked with zeros
    return raw


def at_rest(stream: FakeStream) -> int:
    """How much a voice has made once it makes no more: nothing grows any more."""
    made = -1
    while made != stream.made:
        made = stream.made
        time.sleep(0.3)
    return made


@contextmanager
def serving(
    voice: SynthesisBackend | None = None,
    load: Callable[[Settings], SynthesisBackend] | None = None,
    ready: bool = True,
    **settings: Any,
) -> Iterator[Live]:
    """Serve `voice`, or what `load` makes; `ready`: wait until it can be spoken with."""
    defaults = {"port": 0, "wyoming_port": None, "log_level": "warning", "shutdown_timeout_s": 1}
    chosen = Settings(**{**defaults, **settings})
    if load is None:
        assert voice is not None

        def load(_: Settings) -> SynthesisBackend:
            return voice

    app = create_app(chosen, load=load)
    server = SpeechServer(server_config(app, chosen), app)
    gate = getattr(voice, "gate", None)
    endless = isinstance(voice, FakeVoice) and voice.n_chunks is None
    if isinstance(voice, FakeVoice):  # the warm-up passes
        voice.gate = None
        if endless:
            voice.n_chunks = 1
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), 10)
        live = Live(server, app.state.service)
        if ready:
            until(lambda: live.service.state != "loading", 30)
        if isinstance(voice, FakeVoice):
            voice.gate = gate
            if endless:
                voice.n_chunks = None
            voice.requests.clear()
            voice.streams.clear()
            voice.most_open = 0
        yield live
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"


class Session:
    """A client of the speech protocol that checks its invariants on the way."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.ended: set[int] = set()
        self.current: int | None = None

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def say(self, text: str) -> None:
        self.send("input.text", text=text)
        self.send("input.done")

    def receive(self, timeout: float = 10.0) -> dict[str, Any] | bytes:
        data = self.socket.recv(timeout=timeout)
        if isinstance(data, bytes):
            assert data
            assert len(data) % 2 == 0
            assert self.current is not None, "audio outside an utterance"
            return data
        message: dict[str, Any] = json.loads(data)
        index = message.get("utterance_index")
        if message["type"] == "audio.start":
            assert index not in self.ended
            self.current = index
        elif index is not None and message["type"] in ("session.done", "audio.cancelled", "error"):
            assert index not in self.ended, "an utterance ended twice"
            self.ended.add(index)
            self.current = None
        return message

    def until(self, kind: str, timeout: float = 10.0) -> tuple[dict[str, Any], bytes]:
        """The next message of that kind, and the audio that came before it."""
        audio = b""
        while True:
            item = self.receive(timeout)
            if isinstance(item, bytes):
                audio += item
            elif item["type"] == kind:
                return item, audio
            elif item["type"] == "error":
                raise AssertionError(item)
