"""How the server starts and ends: drain, signals, ports, the command's messages."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from fake_voice import FRAME, FakeVoice
from fastapi import FastAPI
from live import Live, Session, serving, until
from test_operations import KEY, ask, close_code, metric
from test_process import Process, kazeia
from websockets.sync.client import connect

# ---- the end ---------------------------------------------------------------------------


def test_drain_lets_speech_end() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice, shutdown_timeout_s=30) as live:
        with connect(live.ws_url, proxy=None) as speaking, connect(live.ws_url, proxy=None) as idle:
            voice.gate = threading.Event()
            session = Session(speaking)
            session.say("Finish this.")
            raw = ask(live, "/synthesize", {"text": "And this."})
            until(lambda: live.service.running == 2, 10)
            live.server.should_exit = True
            until(lambda: live.get("/readyz").status_code == 503, 10)
            assert live.get("/health").json()["state"] == "draining"
            refused = live.post({"text": "Too late."})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert refused.headers["retry-after"]
            assert close_code(idle) == 1012  # at once, as nothing is spoken on this one
            voice.gate.set()
            _, audio = session.until("session.done")
            assert len(audio) == 3 * FRAME * 2
            assert close_code(speaking) == 1012
            answer = b""
            while data := raw.recv(1 << 16):
                answer += data
            raw.close()
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert len(answer.partition(b"\r\n\r\n")[2]) == 44 + 3 * FRAME * 2
        with pytest.raises(OSError, match="refused"):
            until(lambda: not _connects(live), 10)
            socket.create_connection(("127.0.0.1", live.port), timeout=5)


def _connects(live: Live) -> bool:
    try:
        socket.create_connection(("127.0.0.1", live.port), timeout=5).close()
    except OSError:
        return False
    return True


def test_drain_has_a_deadline() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.005)
    with serving(voice, shutdown_timeout_s=1) as live:
        with connect(live.ws_url, proxy=None) as websocket:
            session = Session(websocket)
            session.say("endless")
            while not isinstance(session.receive(), bytes):
                pass
            raw = ask(live, "/synthesize?stream=1", {"text": "endless"})
            until(lambda: live.service.running == 2, 10)
            live.server.should_exit = True
            assert close_code(websocket) == 1012
            with suppress(OSError):
                while raw.recv(1 << 16):
                    pass
            raw.close()
    assert voice.open_now == 0
    assert voice.closed


def test_a_second_signal_ends_at_once() -> None:
    process = Process("--shutdown-timeout", "600")
    try:
        until(lambda: process.get("/readyz").status_code == 200, 60)
        # Most is never read: there is no closing handshake to wait for.
        with connect(process.ws_url, proxy=None, close_timeout=0.5) as websocket:
            session = Session(websocket)
            session.say("This is a sentence of a long text. " * 400)
            while not isinstance(session.receive(30), bytes):
                pass
            process.process.terminate()
            until(lambda: process.get("/readyz").status_code == 503, 10)
            process.process.terminate()
            process.wait(30)  # ten minutes are not waited for
    finally:
        process.process.kill()


def test_wyoming_comes_and_goes_with_the_application() -> None:
    with serving(FakeVoice(), wyoming_port=0) as live:
        app = live.server.config.app
        assert isinstance(app, FastAPI)
        with socket.create_connection(("127.0.0.1", app.state.wyoming.port)) as client:
            client.settimeout(10)
            client.sendall(b'{"type": "describe"}\n')
            assert b'"type": "info"' in client.recv(1 << 16)
            assert metric(live, "kazeia_sessions") == 1
            live.server.should_exit = True
            while client.recv(1 << 16):
                pass  # until the server has closed


# ---- the command -----------------------------------------------------------------------


def test_ports_that_are_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for args in (
            ["--port", str(port), "--wyoming-port", "off"],
            ["--port", "0", "--wyoming-port", str(port)],
        ):
            result = kazeia("serve", *args)
            assert result.returncode == 1
            errors = result.stderr.decode().splitlines()
            assert len([line for line in errors if line.startswith("error: ")]) == 1
            assert f"cannot listen on 127.0.0.1:{port}: " in errors[-1]
            assert "Traceback" not in result.stderr.decode()


def test_a_host_that_does_not_exist() -> None:
    result = kazeia("serve", "--host", "no.such.host.invalid", "--port", "0")
    assert result.returncode == 1
    assert b"error: cannot listen on no.such.host.invalid:0: " in result.stderr


def test_an_empty_key_is_no_key() -> None:
    result = kazeia("serve", "--port", "0", "--api-key", "")
    assert result.returncode == 2
    assert b"error: --api-key is empty" in result.stderr


def test_a_model_that_cannot_be_used(tmp_path: Path) -> None:
    args = ["--port", "0", "--wyoming-port", "off", "--model", str(tmp_path), "--log-format"]
    result = kazeia("serve", *args, "json")
    assert result.returncode == 2
    lines = result.stderr.decode().splitlines()
    assert [line for line in lines if line.startswith("error: ")] == [lines[-1]]
    for line in lines[:-1]:
        assert json.loads(line)["level"] in ("info", "error")


@pytest.mark.parametrize(
    ("args", "warned"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--api-key", KEY], False),
        (["--host", "127.0.0.1"], False),
    ],
)
def test_open_to_others_without_a_key(args: list[str], warned: bool) -> None:
    process = Process(*args, "--log-level", "debug")
    try:
        url = process.url.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(trust_env=False) as client:
            client.get(f"{url}/metrics?token={KEY}", timeout=10)
        process.process.terminate()
        process.wait(30)
    finally:
        process.process.kill()
    log = "\n".join(process.log)
    assert ("no API key is required" in log) is warned
    assert "GET /metrics" in log
    assert KEY not in log
