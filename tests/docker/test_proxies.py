"""The proxies' configurations, run in front of a real server: sound arrives while it is made."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml
from deploy_files import DOCKER, SETTINGS, run, system_tool
from fake_voice import FRAME, FakeVoice
from live import Live, Session, serving, until
from websockets.sync.client import connect

from kazeia_server.app import create_app
from kazeia_server.settings import Settings

PROXIES = DOCKER / "proxies"
UPSTREAM = "127.0.0.1:8080"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def nginx(folder: Path, port: int, upstream: str, change: Callable[[str], str]) -> list[str]:
    """The command that runs our nginx.conf at `port`, inside the smallest main configuration."""
    site = (PROXIES / "nginx.conf").read_text("utf-8")
    site = replaced(site, "listen 80;", f"listen 127.0.0.1:{port};")
    site = change(replaced(site, f"server {UPSTREAM};", f"server {upstream};"))
    (folder / "site.conf").write_text(site, "utf-8")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "main.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {places}\n include {folder}/site.conf; }}\n",
        "utf-8",
    )
    return [system_tool("nginx"), "-p", str(folder), "-c", str(folder / "main.conf")]


def caddy(folder: Path, port: int, upstream: str, change: Callable[[str], str]) -> list[str]:
    site = (PROXIES / "Caddyfile").read_text("utf-8")
    site = replaced(site, "\n:80 {", f"\n{{\n\tadmin off\n}}\nhttp://127.0.0.1:{port} {{")
    site = change(replaced(site, UPSTREAM, upstream))
    (folder / "Caddyfile").write_text(site, "utf-8")
    file = str(folder / "Caddyfile")
    return [system_tool("caddy"), "run", "--config", file, "--adapter", "caddyfile"]


@contextmanager
def proxy(kind: str, folder: Path, upstream: Live) -> Iterator[str]:
    """HOST:PORT of the proxy in front of `upstream`."""
    port = free_port()
    command = {"nginx": nginx, "caddy": caddy}[kind](
        folder, port, f"127.0.0.1:{upstream.port}", lambda text: text
    )
    environment = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "PATH": "/usr/bin"}
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
        try:
            until(lambda: process.poll() is not None or _answers(port), 20)
            assert process.poll() is None, (folder / "log").read_text()
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@contextmanager
def stream(address: str) -> Iterator[Iterator[bytes]]:
    """Speech as raw PCM, in the pieces in which it arrives."""
    with httpx.Client(trust_env=False, timeout=httpx.Timeout(20)) as client:
        body = {"text": "Stream this.", "response_format": "pcm"}
        url = f"http://{address}/synthesize?stream=1"
        with client.stream("POST", url, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            yield answer.iter_raw()


class SomeFrames(threading.Event):
    """A gate that lets three frames pass, and the others once it is set."""

    COUNT = 3  # the first may travel with the head of the answer, past any buffer

    def __init__(self) -> None:
        super().__init__()
        self._left = self.COUNT

    def wait(self, timeout: float | None = None) -> bool:
        if self._left > 0:
            self._left -= 1
            return True
        return super().wait(timeout)


EARLY = SomeFrames.COUNT * FRAME * 2
ALL = 2 * EARLY


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_sound_arrives_while_it_is_made(kind: str, tmp_path: Path) -> None:
    system_tool(kind)
    gate = SomeFrames()
    voice = FakeVoice(n_chunks=2 * SomeFrames.COUNT, gate=gate)
    with serving(voice) as live, proxy(kind, tmp_path, live) as address:
        with stream(address) as pieces:
            received = 0
            while received < EARLY:  # the voice makes no more before the gate opens
                received += len(next(pieces))
            assert received == EARLY
            gate.set()
            assert received + sum(map(len, pieces)) == ALL


@contextmanager
def holding_proxy(upstream: Live) -> Iterator[str]:
    """HOST:PORT of a proxy that passes an answer on once it has all of it.

    What nginx with its buffers passes on early depends on how its reads fall.
    """

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)

    def serve(server: socket.socket) -> None:
        client, _ = server.accept()
        with client, socket.create_connection(("127.0.0.1", upstream.port)) as to_server:
            threading.Thread(target=pass_on, args=(client, to_server), daemon=True).start()
            answer = b""
            while not answer.endswith(b"\r\n0\r\n\r\n") and (more := to_server.recv(1 << 16)):
                answer += more
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(20)


def test_a_proxy_that_buffers_is_noticed() -> None:
    gate = SomeFrames()
    voice = FakeVoice(n_chunks=2 * SomeFrames.COUNT, gate=gate)
    with serving(voice) as live, holding_proxy(live) as address:
        lengths: list[int] = []

        def read() -> None:
            with stream(address) as pieces:
                lengths.extend(map(len, pieces))

        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: bool(voice.streams) and voice.streams[0].made == SomeFrames.COUNT, 20)
        reader.join(1.0)
        early = sum(lengths)
        gate.set()
        reader.join(20)
        assert early < EARLY
        assert sum(lengths) == ALL


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_websockets_pass(kind: str, tmp_path: Path) -> None:
    system_tool(kind)
    gate = SomeFrames()
    voice = FakeVoice(n_chunks=2 * SomeFrames.COUNT, gate=gate)
    with serving(voice) as live, proxy(kind, tmp_path, live) as address:
        with connect(f"ws://{address}/ws/synthesize", proxy=None) as raw:
            session = Session(raw)
            session.say("Speak through a proxy.")
            session.until("audio.start")
            received = 0
            while received < EARLY:
                item = session.receive()
                assert isinstance(item, bytes)
                received += len(item)
            gate.set()
            _, audio = session.until("session.done")
            assert received + len(audio) == ALL


def test_nginx_accepts_the_file_and_refuses_a_wrong_one(tmp_path: Path) -> None:
    command = nginx(tmp_path, free_port(), UPSTREAM, lambda text: text)
    done = run(*command, "-t")
    assert done.returncode == 0, done.stderr
    command = nginx(
        tmp_path, free_port(), UPSTREAM, lambda text: replaced(text, "gzip off", "gzzip off")
    )
    done = run(*command, "-t")
    assert done.returncode != 0
    assert "gzzip" in done.stderr


def test_settings_named_in_the_proxies_exist() -> None:
    named = set()
    for file in PROXIES.iterdir():
        named |= set(re.findall(r"KZTTS_[A-Z_]*[A-Z]", file.read_text("utf-8")))
    assert named
    assert named <= SETTINGS


def test_traefik_is_told_to_flush_at_once() -> None:
    """Parsed only: no package here brings a Traefik that could run it."""
    loaded = yaml.safe_load((PROXIES / "traefik.yaml").read_text("utf-8"))
    router = loaded["http"]["routers"]["kazeia"]
    balancer = loaded["http"]["services"][router["service"]]["loadBalancer"]
    assert router["middlewares"] == []
    assert balancer["responseForwarding"]["flushInterval"] == "-1ms"
    assert balancer["healthCheck"]["path"] in create_app(Settings()).openapi()["paths"]


@pytest.mark.parametrize(
    ("required", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_a_missing_proxy_is_said_aloud(
    required: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAZEIA_REQUIRE_SERVICES", required)
    with pytest.raises(outcome, match="no-such-proxy is not on the path"):
        system_tool("no-such-proxy")
