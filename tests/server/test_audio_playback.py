from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kazeia_server.audio.playback import open_player
from kazeia_server.errors import InvalidRequest

PCM = bytes(range(200)) * 100


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; no sounddevice."""
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def add(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_plays_all_through_a_program(programs: Path) -> None:
    heard = programs / "heard"
    add(programs, "paplay", f'exec /bin/cat > "{heard}"')
    player = open_player(24_000)
    player.write(PCM)
    player.write(PCM)
    player.close()
    assert heard.read_bytes() == PCM * 2


def test_abort_does_not_wait_for_the_end(programs: Path) -> None:
    add(programs, "aplay", "exec /bin/sleep 1000")
    player = open_player(24_000)
    player.write(PCM)
    player.abort()


def test_nothing_to_play_with(programs: Path) -> None:
    with pytest.raises(InvalidRequest, match="sounddevice, or one of aplay, paplay, ffplay"):
        open_player(24_000)


def test_nothing_to_play_with_is_a_warning_when_playing_is_not_all(programs: Path) -> None:
    warnings: list[str] = []
    player = open_player(24_000, warn=warnings.append)
    player.write(PCM)
    player.close()
    player.abort()
    assert len(warnings) == 1
    assert "nothing to play with" in warnings[0]


@pytest.mark.parametrize(
    ("script", "says"),
    [("echo no such device >&2; exit 1", "aplay failed: no such device"), ("exit 0", "ended")],
)
def test_a_player_that_gives_up(programs: Path, script: str, says: str) -> None:
    add(programs, "aplay", script)

    def play(player: Any) -> None:
        for _ in range(100):  # more than a pipe holds
            player.write(PCM)
        player.close()

    with pytest.raises(InvalidRequest, match=says):
        play(open_player(24_000))
    warnings: list[str] = []
    play(open_player(24_000, warn=warnings.append))
    assert len(warnings) == 1
    assert says in warnings[0]


def test_a_program_that_cannot_be_started(programs: Path) -> None:
    (programs / "aplay").write_bytes(b"\x7fELF but not really")
    (programs / "aplay").chmod(0o755)
    with pytest.raises(InvalidRequest, match="aplay cannot be started"):
        open_player(24_000)


class FakeStream:
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.played = b""
        self.calls: list[str] = []
        self.fails: Exception | None = None

    def start(self) -> None:
        self.calls.append("start")

    def write(self, pcm: bytes) -> None:
        if self.fails is not None:
            raise self.fails
        self.played += pcm

    def stop(self) -> None:
        self.calls.append("stop")

    def abort(self, ignore_errors: bool = True) -> None:
        self.calls.append("abort")

    def close(self, ignore_errors: bool = True) -> None:
        self.calls.append("close")


@pytest.fixture
def streams(programs: Path, monkeypatch: pytest.MonkeyPatch) -> list[FakeStream]:
    """Streams opened with a stand-in for sounddevice, which needs sound hardware."""
    opened: list[FakeStream] = []

    def open_stream(**options: Any) -> FakeStream:
        opened.append(FakeStream(**options))
        return opened[-1]

    module: Any = ModuleType("sounddevice")
    module.PortAudioError = type("PortAudioError", (Exception,), {})
    module.RawOutputStream = open_stream
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    return opened


def test_sounddevice_comes_first(streams: list[FakeStream], programs: Path) -> None:
    add(programs, "aplay", "exit 1")
    player = open_player(16_000)
    player.write(PCM)
    player.close()
    (stream,) = streams
    assert stream.options == {"samplerate": 16_000, "channels": 1, "dtype": "int16"}
    assert stream.played == PCM
    assert stream.calls == ["start", "stop", "close"]


def test_a_device_that_fails(streams: list[FakeStream]) -> None:
    warnings: list[str] = []
    player = open_player(16_000, warn=warnings.append)
    streams[0].fails = sys.modules["sounddevice"].PortAudioError("unplugged")
    player.write(PCM)
    player.write(PCM)
    player.close()
    assert warnings == ["sounddevice failed: unplugged"]
    assert streams[0].calls == ["start", "abort", "close"]


def test_without_a_device_a_program_plays(streams: list[FakeStream], programs: Path) -> None:
    module: Any = sys.modules["sounddevice"]

    def refuse(**options: Any) -> FakeStream:
        raise module.PortAudioError("no default device")

    module.RawOutputStream = refuse
    heard = programs / "heard"
    add(programs, "aplay", f'exec /bin/cat > "{heard}"')
    player = open_player(16_000)
    player.write(PCM)
    player.close()
    assert heard.read_bytes() == PCM
