"""`kazeia-client` where its standard streams are closed, narrow, or a terminal to be commanded."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from client_tools import scripted
from fake_voice import FakeVoice
from live import serving
from test_client_cli import LIGHT

from kazeia_client.cli import main

ESCAPE = "\x1b]0;owned\x07\x9b2J"
VOICES: dict[str, Any] = {
    "voices": [{"name": f"é{ESCAPE}", "default": True}],
    "languages": ["日本語"],
    "model": f"m{ESCAPE}",
    "voice_source": "built-in",
    "sample_rate": 24_000,
    "follows_instructions": False,
}


def shell(redirections: str, url: str, *arguments: str, **environment: str) -> Any:
    """The command by way of a shell, which can close its streams."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", *LIGHT, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        env={**os.environ, "KAZEIA_URL": url, **environment},
    )


@pytest.mark.parametrize(
    ("redirections", "arguments", "expected"),
    [
        ("<&-", ("speak", "-", "-o", "OUT"), b"error: standard input is closed"),
        (">&-", ("voices",), b"error: standard output is closed"),
        (">&-", ("health", "--json"), b"error: standard output is closed"),
        (">&-", ("speak", "Hello.", "-o", "-"), b"error: standard output is closed"),
    ],
)
def test_closed_streams(
    redirections: str, arguments: tuple[str, ...], expected: bytes, tmp_path: Path
) -> None:
    named = [str(tmp_path / "a.wav") if a == "OUT" else a for a in arguments]
    with serving(FakeVoice(n_chunks=1)) as live:
        done = shell(redirections, live.url, *named)
    assert done.returncode == 2
    assert done.stderr.startswith(expected)
    assert len(done.stderr.splitlines()) == 1


def test_nobody_can_be_told(tmp_path: Path) -> None:
    with serving(FakeVoice(n_chunks=1)) as live:
        done = shell("2>&-", live.url, "speak", "Hello.", "-o", str(tmp_path / "a.wav"))
    assert done.returncode == 0
    assert (tmp_path / "a.wav").stat().st_size > 44


@pytest.mark.parametrize("arguments", [("voices",), ("voices", "--json")])
@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_what_a_terminal_cannot_show_or_must_not_obey(
    arguments: tuple[str, ...], encoding: str
) -> None:
    answer = (200, {"content-type": "application/json"}, json.dumps(VOICES).encode())
    with scripted(answer) as (url, _):
        done = shell("", url, *arguments, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert ("é" in shown) == (encoding != "ascii")
    assert "\\u65e5" in shown or "日本語" in shown
    assert not any(character in shown for character in "\x1b\x07\x9b")


def test_an_error_does_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    body = {"error": {"message": f"no{ESCAPE}", "code": "invalid_request"}}
    with scripted((400, {}, json.dumps(body).encode())) as (url, _):
        assert main(["voices", "--url", url]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: no")
    assert not any(character in told for character in "\x1b\x07\x9b")


@pytest.mark.parametrize("suffix", ["wav", "pcm"])
def test_a_pipe_whose_reader_leaves(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / f"pipe.{suffix}"
    os.mkfifo(pipe)

    def leave() -> None:
        with pipe.open("rb") as file:
            file.read(1)

    with serving(FakeVoice(n_chunks=None)) as live:
        reading = threading.Thread(target=leave)
        reading.start()
        assert main(["speak", "An endless text.", "-o", str(pipe), "--url", live.url]) == 1
        reading.join(5)
    assert f"whoever read {pipe} has left" in capsys.readouterr().err
