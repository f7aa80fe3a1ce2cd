from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from kazeia_client import AudioFormat, PlaybackError, Player, UsageError

DOUBLE = Path(__file__).parent / "sounddevice_double"
MONO = AudioFormat("pcm", 24_000)

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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aplay", "-q -t raw -f S16_LE -c 1 -r 24000 -"),
        ("paplay", "--raw --format=s16le --channels=1 --rate=24000"),
        ("ffplay", "-loglevel error -nodisp -autoexit -f s16le -ar 24000 -"),
    ],
)
def test_plays_all_through_a_program(programs: Path, name: str, said: str) -> None:
    heard, told = programs / "heard", programs / "told"
    add(programs, name, f'echo "$*" > "{told}"; exec /bin/cat > "{heard}"')
    with Player(MONO) as player:
        player.write(PCM)
        player.write(PCM)
    assert heard.read_bytes() == PCM * 2
    assert told.read_text("utf-8") == said + "\n"
    player.close()  # nothing, the second time
    with pytest.raises(PlaybackError, match="closed"):
        player.write(PCM)


def test_the_first_program_of_the_list_plays(programs: Path) -> None:
    for name in ("ffplay", "paplay", "aplay"):
        add(programs, name, f'exec /bin/cat > "{programs / "heard"}-{name}"')
        with Player(MONO) as player:
            player.write(PCM)
    for name in ("ffplay", "paplay", "aplay"):
        assert (programs / f"heard-{name}").read_bytes() == PCM


def test_two_channels(programs: Path) -> None:
    stereo = AudioFormat("pcm", 24_000, 2)
    add(programs, "ffplay", "exec /bin/cat")
    with pytest.raises(PlaybackError, match="nothing to play with"):
        Player(stereo)
    add(programs, "aplay", f'echo "$*" > "{programs / "told"}"; exec /bin/cat')
    Player(stereo).close()
    assert "-c 2 -r 24000" in (programs / "told").read_text("utf-8")


def test_what_is_no_pcm_is_refused() -> None:
    with pytest.raises(UsageError, match="mp3 cannot be played"):
        Player(AudioFormat("mp3", 24_000))


def test_abort_does_not_wait_for_the_end(programs: Path) -> None:
    add(programs, "aplay", "exec /bin/sleep 1000")
    player = Player(MONO)
    player.write(PCM)
    player.abort()


def test_nothing_to_play_with(programs: Path) -> None:
    with pytest.raises(PlaybackError, match="none of aplay, paplay, ffplay"):
        Player(MONO)


def test_nothing_to_play_with_is_a_warning_when_playing_is_not_all(programs: Path) -> None:
    warnings: list[str] = []
    player = Player(MONO, warn=warnings.append)
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

    def play(player: Player) -> None:
        for _ in range(100):  # more than a pipe holds
            player.write(PCM)
        player.close()

    with pytest.raises(PlaybackError, match=says):
        play(Player(MONO))
    warnings: list[str] = []
    play(Player(MONO, warn=warnings.append))
    assert len(warnings) == 1
    assert says in warnings[0]


def test_a_program_that_complains_a_lot_plays_on(programs: Path) -> None:
    heard = programs / "heard"
    noise = "for n in 1 2 3 4; do /usr/bin/head -c 60000 /dev/zero >&2; done"  # more than a pipe's
    add(programs, "aplay", f'{noise}; exec /bin/cat > "{heard}"')
    with Player(MONO) as player:
        for _ in range(100):
            player.write(PCM)
    assert heard.read_bytes() == PCM * 100


def test_an_exception_is_silence_at_once(programs: Path) -> None:
    add(programs, "aplay", "exec /bin/sleep 1000")
    with pytest.raises(KeyError), Player(MONO):
        raise KeyError


def test_a_program_that_cannot_be_started(programs: Path) -> None:
    (programs / "aplay").write_bytes(b"\x7fELF but not really")
    (programs / "aplay").chmod(0o755)
    with pytest.raises(PlaybackError, match="aplay cannot be started"):
        Player(MONO)


@pytest.fixture
def card(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a stand-in for sounddevice plays into; it needs no sound hardware."""
    monkeypatch.syspath_prepend(str(DOUBLE))
    monkeypatch.delitem(sys.modules, "sounddevice")
    monkeypatch.setenv("SOUNDDEVICE_DOUBLE", str(programs / "card"))
    return programs / "card"


def calls(card: Path) -> list[str]:
    return card.with_suffix(".calls").read_text("utf-8").split()


def test_sounddevice_comes_first(card: Path) -> None:
    add(card.parent, "aplay", "exit 1")
    player = Player(AudioFormat("pcm", 16_000))
    player.write(PCM)
    player.close()
    assert card.read_bytes() == PCM
    assert calls(card) == ["16000", "start", "stop", "close"]


def test_a_device_that_fails(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUNDDEVICE_BREAKS", "1")
    warnings: list[str] = []
    player = Player(MONO, warn=warnings.append)
    for _ in range(3):  # it fails at the second
        player.write(PCM)
    player.close()
    assert warnings == ["the sound card failed: it was pulled out"]
    assert calls(card) == ["24000", "start", "abort", "close"]


@pytest.mark.parametrize("error", ["PortAudioError", "ValueError"])
def test_without_a_device_a_program_plays(
    card: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    sounddevice: Any = importlib.import_module("sounddevice")

    def refuse(**options: Any) -> None:
        raise getattr(sounddevice, error, ValueError)("no device that fits")

    monkeypatch.setattr(sounddevice, "RawOutputStream", refuse)
    with pytest.raises(PlaybackError, match="no device that fits, and there is none of aplay"):
        Player(MONO)
    heard = card.parent / "heard"
    add(card.parent, "aplay", f'exec /bin/cat > "{heard}"')
    with Player(MONO) as player:
        player.write(PCM)
    assert heard.read_bytes() == PCM
