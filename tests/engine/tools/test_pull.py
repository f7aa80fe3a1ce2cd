"""Downloads, from a hub of our own on the loopback address."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kazeia_engine import EngineError, InvalidInput, ModelFormatError, ModelNotFound
from kazeia_engine.tools.cli import app
from kazeia_engine.tools.pull import KNOWN_MODELS, Pulled, pull, repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * 400
FILES = {
    "config.json": b'{"a": 1}',
    "model.safetensors": WEIGHTS,
    "speech_tokenizer/model.safetensors": WEIGHTS[::-1],
    "README.md": b"not wanted",
}


class Hub(ThreadingHTTPServer):
    """Answers the hub's two questions: what is in a repository, and a file of it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files = dict(FILES)
        self.digests = {
            k: hashlib.sha256(v).hexdigest() for k, v in FILES.items() if "safetensors" in k
        }
        self.requested: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        headers = {"X-Repo-Commit": COMMIT}
        if path.startswith("/api/models/own/voice"):
            data = json.dumps(self._listing()).encode()
            headers["Content-Type"] = "application/json"
        elif path.startswith(f"/own/voice/resolve/{COMMIT}/"):
            name = path.split(f"{COMMIT}/")[1]
            data = self.server.files[name]
            headers["ETag"] = f'"{self.server.digests.get(name, name)}"'
            if body:
                self.server.requested.append(name)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _listing(self) -> dict[str, object]:
        siblings = []
        for name, data in FILES.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
            if name in self.server.digests:
                digest = self.server.digests[name]
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {"id": "own/voice", "sha": COMMIT, "siblings": siblings, "tags": []}

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    use_endpoint(monkeypatch, server.url)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def use_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The hub's client reads its address once, at import, into several modules."""
    for name in ("huggingface_hub.file_download", "huggingface_hub.hf_api"):
        import_module(name)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, module in list(sys.modules.items()):
        if name.startswith("huggingface_hub"):
            if "ENDPOINT" in vars(module):
                monkeypatch.setattr(module, "ENDPOINT", url)
            if "HUGGINGFACE_CO_URL_TEMPLATE" in vars(module):
                monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_files_arrive_and_are_verified(hub: Hub, tmp_path: Path) -> None:
    lines: list[str] = []
    pulled = pull("own/voice", tmp_path, log=lines.append)
    wanted = ("config.json", "model.safetensors", "speech_tokenizer/model.safetensors")
    assert pulled == Pulled(tmp_path, "own/voice", COMMIT, wanted, wanted[1:], has_pair=False)
    for name in wanted:
        assert (tmp_path / name).read_bytes() == FILES[name]
    assert not (tmp_path / "README.md").exists()
    assert lines[1] == "[1/3] config.json"


def test_what_is_there_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    pull("own/voice", tmp_path)
    hub.requested.clear()
    pull("own/voice", tmp_path)
    assert hub.requested == []


def test_damaged_file_is_removed(hub: Hub, tmp_path: Path) -> None:
    damaged = bytearray(WEIGHTS)
    damaged[1000] ^= 1
    hub.files["model.safetensors"] = bytes(damaged)
    with pytest.raises(ModelFormatError, match=r"model\.safetensors arrived damaged: SHA-256"):
        pull("own/voice", tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    hub.files["model.safetensors"] = WEIGHTS
    pull("own/voice", tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_unknown_repository(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="own/other"):
        pull("own/other", tmp_path)


def test_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_endpoint(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(EngineError, match="hub cannot be reached for own/voice"):
        pull("own/voice", tmp_path)
    result = CliRunner().invoke(app, ["pull", "own/voice", "-o", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the hub cannot be reached")


def test_command_names_the_next_step(hub: Hub, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["pull", "own/voice", "-o", str(tmp_path / "v")])
    assert result.exit_code == 0, result.output
    assert f"3 files in {tmp_path / 'v'}, 2 verified" in result.stdout
    assert f"kazeia convert {tmp_path / 'v'} " in result.stdout


@pytest.mark.parametrize("name", ["", "nothing", "a/b/c", "/x", "x/", "../x", "a/.."])
def test_unknown_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"0\.6b-custom"):
        pull(name, tmp_path)


def test_short_names() -> None:
    assert repository("0.6B-Custom") == "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
    assert repository("own/voice") == "own/voice"
    assert all(repository(name) == full for name, full in KNOWN_MODELS.items())


def test_target_is_a_file(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.touch()
    with pytest.raises(InvalidInput, match="not a folder"):
        pull("own/voice", target)
