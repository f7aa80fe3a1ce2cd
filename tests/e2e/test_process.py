"""The `kazeia` command as a process of its own, with the built-in voice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from live import Session, until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

KAZEIA = [sys.executable, "-m", "kazeia_server.cli"]
LONG = "This is a sentence of a long text. " * 400


def kazeia(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*KAZEIA, *args],
        input=None if stdin is None else stdin.encode(),
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=120,
    )


class Process:
    """`kazeia serve` with its log."""

    def __init__(self, *args: str, command: list[str] = KAZEIA, **environ: str) -> None:
        self.process = subprocess.Popen(
            [*command, "serve", "--port", "0", *args],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "KZTTS_WYOMING_PORT": "off", **environ},
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        until(lambda: self._address() is not None or self.process.poll() is not None, 60)
        address = self._address()
        assert address is not None, self.log
        self.url = f"http://{address}"
        self.ws_url = f"ws://{address}/ws/synthesize"

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.log.append(line.rstrip())

    def _address(self) -> str | None:
        for line in list(self.log):
            if found := re.search(r"running on http://([\d.]+:\d+)", line):
                return found[1]
        return None

    def get(self, path: str) -> httpx.Response:
        with httpx.Client(trust_env=False) as client:
            return client.get(self.url + path, timeout=10)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 20.0) -> int:
        self.process.send_signal(number)
        return self.wait(timeout)

    def wait(self, timeout: float = 20.0) -> int:
        code = self.process.wait(timeout)
        self._reader.join(10)
        return code


@contextmanager
def serve(*args: str, command: list[str] = KAZEIA, **environ: str) -> Iterator[Process]:
    process = Process(*args, command=command, **environ)
    try:
        until(lambda: process.get("/readyz").status_code == 200, 60)
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.wait()


def test_say_writes_speech_and_names_the_voice(tmp_path: Path) -> None:
    out = tmp_path / "hello.wav"
    result = kazeia("say", "Hello, this is a test.", "-o", str(out), "--stats")
    assert result.returncode == 0, result.stderr
    assert b"built-in voice" in result.stdout
    for figure in (b"first sound", b"rtf", b"chunks", b"ended"):
        assert figure in result.stdout
    with wave.open(str(out)) as reader:
        samples = np.frombuffer(reader.readframes(reader.getnframes()), "<i2")
        assert reader.getframerate() == 24_000
    assert 1.0 < len(samples) / 24_000 < 4.0
    assert np.abs(samples).max() > 3000


def test_say_from_pipe_to_pipe() -> None:
    result = kazeia("say", "-", "-o", "-", stdin="Hello from a pipe.")
    assert result.returncode == 0
    assert result.stdout[:4] == b"RIFF"
    assert int.from_bytes(result.stdout[40:44], "little") == len(result.stdout) - 44
    assert b"built-in voice" in result.stderr


def test_serve_speaks_on_every_door() -> None:
    with serve() as server:
        health, ready = server.get("/health").json(), server.get("/readyz").json()
        assert (health["voice_source"], health["model"]) == ("built-in", ready["model"])
        assert server.get("/v1/voices").json()["voices"][0]["id"] == "heart"
        with httpx.Client(trust_env=False) as client:
            answer = client.post(
                f"{server.url}/synthesize", json={"text": "Hello over HTTP."}, timeout=30
            )
        assert answer.status_code == 200
        assert np.abs(np.frombuffer(answer.content[44:], "<i2")).max() > 3000
        with connect(server.ws_url, proxy=None) as websocket:
            session = Session(websocket)
            session.say("Hello over a socket. It has a second sentence.")
            done, audio = session.until("audio.done", 30)
            assert np.abs(np.frombuffer(audio, "<i2")).max() > 3000
            assert done["n_chunks"] > 3
            assert done["ttfb_s"] < done["rtf"] * done["audio_s"]
            session.until("session.done")
        assert any("built-in voice" in line for line in server.log)
        assert server.stop() in (0, -signal.SIGTERM)
    assert not any("Traceback" in line for line in server.log), server.log


def test_process_1_ends_although_no_signal_can_end_it() -> None:
    program = "import os; os.getpid = lambda: 1; from kazeia_server.cli import app; app()"
    with serve(command=[sys.executable, "-c", program]) as server:
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_with_streams_open(number: int) -> None:
    with (
        serve("--max-concurrent", "2", KZTTS_SHUTDOWN_TIMEOUT_S="1") as server,
        connect(server.ws_url, proxy=None, close_timeout=0.5) as first,  # much of it stays unread
        connect(server.ws_url, proxy=None) as idle,
    ):
        session = Session(first)
        session.say(LONG)
        while not isinstance(session.receive(30), bytes):
            pass
        hanging = threading.Thread(target=_ignore_errors, args=(server.url,))
        hanging.start()
        until(lambda: server.get("/health").json()["running"] == 2, 10)
        assert server.stop(number, timeout=15) in (0, -number, 128 + number)
        goodbye = json.loads(idle.recv(timeout=5))
        assert (goodbye["type"], goodbye["utterance_index"]) == ("session.done", None)
        with pytest.raises(ConnectionClosed) as closed:
            idle.recv(timeout=5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code in (1001, 1012)
        hanging.join(10)
        assert not hanging.is_alive()


def _ignore_errors(url: str) -> None:
    with httpx.Client(trust_env=False) as client, suppress(httpx.HTTPError):
        client.post(f"{url}/synthesize", json={"text": LONG}, timeout=30)


def test_serve_stops_when_there_is_no_model(tmp_path: Path) -> None:
    result = kazeia("serve", "--port", "0", "--model", str(tmp_path / "nothing"))
    assert result.returncode == 2
    assert b"there is no model at" in result.stderr
    assert b"Traceback" not in result.stderr


def test_serve_on_a_port_that_is_taken() -> None:
    with serve() as server:
        port = server.url.rpartition(":")[2]
        result = kazeia("serve", "--port", port, "--wyoming-port", "off")
        assert result.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}".encode() in result.stderr
        assert server.get("/health").status_code == 200


def test_cancel_of_the_built_in_voice_frees_it_soon() -> None:
    with (
        serve("--max-concurrent", "1", "--max-queue", "0") as server,
        connect(server.ws_url, proxy=None) as websocket,
    ):
        session = Session(websocket)
        for _ in range(3):
            session.say(LONG)
            while not isinstance(session.receive(30), bytes):
                pass
            session.send("input.cancel")
            session.until("audio.cancelled")
        until(lambda: server.get("/health").json()["running"] == 0, 10)
        session.say("Short.")
        session.until("session.done", 30)
        websocket.send(json.dumps({"type": "session.close"}))
        session.until("session.done")
