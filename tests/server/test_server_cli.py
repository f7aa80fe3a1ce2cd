from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kazeia_server.cli import app

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["say", ""], "text is empty"),
        (["say", " \n"], "text is empty"),
        (["say", "a" * 100_000], "100000 characters; at most 20000"),
        (["say", "hi", "--voice", "bob"], "unknown voice 'bob'; hibari has heart"),
        (["say", "hi", "--language", "klingon"], "auto, english"),
        (["say", "hi", "--temperature", "nan"], "temperature is nan: .*finite"),
        (["say", "hi", "--top-p", "1.5"], "top_p is 1.5"),
        (["say", "hi", "--seed", "-1"], "seed is -1"),
        (["say", "hi", "--chunk", "often"], "chunk is 'often'"),
        (["say", "hi", "--text-mode", "half"], "text_mode is 'half'"),
        (["say", "hi", "--max-frames", "0"], "max_frames is 0"),
        (["say", "hi", "--model", "no/such/folder"], "there is no model at no/such/folder"),
        (["say", "你好"], "found nothing to say"),
        (["serve", "--port", "70000"], "^error: --port: "),
        (["say", "hi", "--threads", "0"], "^error: --threads: .* got 0"),
        (["serve", "--shutdown-timeout", "-1"], "^error: --shutdown-timeout: "),
        (["serve", "--wyoming-port", "abc"], "^error: --wyoming-port: .*a port or off, got 'abc'"),
        (["serve", "--log-level", "loud"], "^error: --log-level: "),
        (["serve", "--device", ""], "--device-talker: .*--device-cp: .*--device-decoder: "),
        (["say", "hi", "--device", "auto", "--device-cp", ""], "^error: --device-cp: [^;]*$"),
        (["serve", "--max-rows", "-1"], "--max-rows: .* got -1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    args: list[str], expected: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.wav"
    if args[0] == "say":
        args = [*args, "-o", str(out)]
    result = RUNNER.invoke(app, args)
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.search(expected, errors[0])
    assert not out.exists()


def test_somewhere_to_put_the_speech_is_needed() -> None:
    result = RUNNER.invoke(app, ["say", "hi"])
    assert result.exit_code == 2
    assert "-o FILE, or --play" in result.stderr


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "no" / "out.wav"):
        result = RUNNER.invoke(app, ["say", "hi", "-o", str(target)])
        assert result.exit_code == 2
        assert "folder" in result.stderr


def test_unknown_settings_are_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KZTTS_TOPKK", "1")
    result = RUNNER.invoke(app, ["say", "hi", "-o", str(tmp_path / "out.wav")])
    assert result.exit_code == 0
    assert "did you mean KZTTS_TOPK?" in result.stderr


def test_play_through_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = tmp_path / "heard.raw"
    player = tmp_path / "aplay"
    player.write_text(f'#!/bin/sh\nexec /bin/cat > "{heard}"\n')
    player.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    out = tmp_path / "out.wav"
    result = RUNNER.invoke(app, ["say", "Hello.", "--play", "-o", str(out)])
    assert result.exit_code == 0, result.stderr
    assert heard.read_bytes() == out.read_bytes()[44:]


def test_a_player_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player = tmp_path / "aplay"
    player.write_text("#!/bin/sh\necho no such device >&2\nexit 1\n")
    player.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    result = RUNNER.invoke(app, ["say", "Hello.", "--play"])
    assert result.exit_code == 2
    assert "aplay failed: no such device" in result.stderr


def test_nothing_to_play_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    result = RUNNER.invoke(app, ["say", "Hello.", "--play"])
    assert result.exit_code == 2
    assert "aplay, paplay, ffplay" in result.stderr


def test_help_and_version() -> None:
    text = RUNNER.invoke(app, ["--help"]).stdout
    assert "say" in text
    assert "serve" in text
    assert RUNNER.invoke(app, ["--version"]).stdout.strip()


def test_starting_say_imports_nothing_heavy() -> None:
    code = (
        "import sys, kazeia_server.cli\n"
        "heavy = {'numpy', 'fastapi', 'uvicorn', 'hibari', 'onnxruntime', 'kazeia_engine'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
