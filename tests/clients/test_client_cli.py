"""`kazeia-client` and `kazeia speak` as processes, against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import pytest
from client_tools import spoken
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until
from typer.testing import CliRunner

from kazeia_client.cli import main
from kazeia_server.cli import app

DOUBLE = Path(__file__).parent / "sounddevice_double"
LIGHT = (sys.executable, "-m", "kazeia_client")
MAIN = (sys.executable, "-m", "kazeia_server.cli")
Ran = subprocess.CompletedProcess[bytes]


def ran(
    live: Live, *args: str | Path, command: tuple[str, ...] = LIGHT, stdin: bytes = b"", **env: str
) -> Ran:
    return subprocess.run(
        [*command, *map(str, args)],
        input=stdin,
        capture_output=True,
        timeout=60,
        env={**os.environ, "KAZEIA_URL": live.url, **env},
    )


@contextmanager
def running(
    live: Live, *args: str | Path, command: tuple[str, ...]
) -> Iterator[subprocess.Popen[bytes]]:
    """The command with pipes; it does not outlive the test."""
    process = subprocess.Popen(
        [*command, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "KAZEIA_URL": live.url},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def frames_of(path: Path) -> tuple[int, bytes]:
    with wave.open(str(path)) as file:
        return file.getframerate(), file.readframes(file.getnframes())


@pytest.mark.parametrize("command", [LIGHT, MAIN], ids=["kazeia-client", "kazeia"])
def test_speak_into_a_file(
    live: Live, voice: FakeVoice, tmp_path: Path, command: tuple[str, ...]
) -> None:
    out = tmp_path / "out.wav"
    options = ("--voice", "bert", "--language", "fr", "--seed", "4", "--stats")
    done = ran(live, "speak", "Où ça, là-bas.", "-o", out, *options, command=command)
    assert (done.returncode, done.stdout) == (0, b"")
    assert frames_of(out) == (RATE, spoken(voice, 3))
    assert (voice.requests[0].voice, voice.requests[0].seed) == ("Bert", 4)
    assert voice.requests[0].text == "Où ça, là-bas."
    told = done.stderr.decode()
    assert f"wrote {out} (0.24 s)" in told
    assert "ended        eos" in told


@pytest.mark.parametrize("command", [LIGHT, MAIN], ids=["kazeia-client", "kazeia"])
def test_standard_input_is_spoken_while_it_arrives(
    live: Live, voice: FakeVoice, tmp_path: Path, command: tuple[str, ...]
) -> None:
    out = tmp_path / "out.wav"
    with running(live, "speak", "-", "-o", out, command=command) as process:
        assert process.stdin is not None
        process.stdin.write("Où ".encode())
        process.stdin.flush()
        # The first word is being spoken although nobody knows the second.
        until(lambda: out.exists() and out.stat().st_size >= 44 + FRAME * 2, 30)
        rest = "ça à".encode()
        process.stdin.write(rest[:-1])  # cut within a character
        process.stdin.flush()
        process.stdin.write(rest[-1:])
        process.stdin.close()
        assert process.wait(30) == 0
    assert frames_of(out) == (RATE, spoken(voice, 3))
    assert voice.texts == ["Où ça à"]


def test_standard_output_and_other_formats(live: Live, voice: FakeVoice, tmp_path: Path) -> None:
    streamed = ran(live, "speak", "Hello.", "-o", "-")
    assert streamed.stdout[44:] == spoken(voice, 3)
    assert streamed.stdout[4:8] == b"\xff" * 4  # a pipe cannot be rewound: no size is known
    assert ran(live, "speak", "Hello.", "-o", tmp_path / "a.pcm").returncode == 0
    assert (tmp_path / "a.pcm").read_bytes() == spoken(voice, 3)
    for name, codec in (("a.mp3", "mp3float"), ("a.ogg", "opus"), ("a.flac", "flac")):
        assert ran(live, "speak", "Hello.", "-o", tmp_path / name).returncode == 0
        with av.open(str(tmp_path / name)) as container:
            assert container.streams.audio[0].codec_context.name == codec


def test_playing_and_saving(live: Live, voice: FakeVoice, tmp_path: Path) -> None:
    played, out = tmp_path / "played", tmp_path / "out.wav"
    env = {"SOUNDDEVICE_DOUBLE": str(played)}
    env["PYTHONPATH"] = os.pathsep.join((str(DOUBLE), os.environ.get("PYTHONPATH", "")))
    done = ran(live, "speak", "Hello.", "--play", "-o", out, **env)
    assert done.returncode == 0, done.stderr
    assert played.read_bytes() == frames_of(out)[1] == spoken(voice, 3)
    # With nothing to play with a file is still written; without a file there is nothing left to do.
    del env["SOUNDDEVICE_DOUBLE"]
    env["PATH"] = str(tmp_path)
    out.unlink()
    done = ran(live, "speak", "Hello.", "--play", "-o", out, **env)
    assert done.returncode == 0
    assert (
        b"warning: nothing to play with: the sound card cannot be used: no default" in done.stderr
    )
    assert frames_of(out)[1] == spoken(voice, 3)
    done = ran(live, "speak", "Hello.", "--play", **env)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)


@pytest.mark.parametrize("command", [LIGHT, MAIN], ids=["kazeia-client", "kazeia"])
@pytest.mark.parametrize("name", ["aplay", "paplay", "ffplay"])
def test_playing_through_a_program(
    live: Live, voice: FakeVoice, tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    player = tmp_path / name
    player.write_text(f'#!/bin/sh\nexec /bin/cat > "{tmp_path}/heard"\n')
    player.chmod(0o755)
    env = {"PATH": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join((str(DOUBLE), os.environ.get("PYTHONPATH", "")))
    done = ran(live, "speak", "Hello.", "--play", command=command, **env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "heard").read_bytes() == spoken(voice, 3)


def test_a_sound_card_that_fails_on_the_way(live: Live, voice: FakeVoice, tmp_path: Path) -> None:
    played, out = tmp_path / "played", tmp_path / "out.wav"
    env = {"SOUNDDEVICE_DOUBLE": str(played), "SOUNDDEVICE_BREAKS": "1"}
    env["PYTHONPATH"] = os.pathsep.join((str(DOUBLE), os.environ.get("PYTHONPATH", "")))
    done = ran(live, "speak", "Hello.", "--play", "-o", out, **env)
    assert done.returncode == 0, done.stderr
    assert b"warning: the sound card failed: it was pulled out" in done.stderr
    assert frames_of(out)[1] == spoken(voice, 3)
    assert played.with_suffix(".calls").read_text().split() == ["24000", "start", "abort", "close"]
    done = ran(live, "speak", "Hello.", "--play", **env)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)


def test_voices_and_health(live: Live) -> None:
    assert ran(live, "voices").stdout.decode().splitlines() == [
        "fake (qwen3-tts, 24000 Hz)",
        "  anna (default)",
        "  Bert",
        "languages: auto, english, french",
    ]
    assert json.loads(ran(live, "voices", "--json").stdout)["voices"][1]["name"] == "Bert"
    assert ran(live, "health").stdout.startswith(b"ready: version ")
    assert json.loads(ran(live, "health", "--json").stdout)["state"] == "ready"


@pytest.mark.parametrize(
    ("args", "expected", "code"),
    [
        (("speak", "Hi."), "give -o FILE, or --play", 2),
        (("speak", "", "-o", "a.wav"), "text is empty", 2),
        (("speak", "Hi.", "-o", "a.doc"), r"suffix \.doc: expected one of \.wav", 2),
        (("speak", "Hi.", "-o", "no/a.wav"), "no is not a folder", 2),
        (("speak", "Hi.", "-o", "."), "is a folder", 2),
        (("speak", "Hi.", "-o", "a.mp3", "--play"), "mp3 cannot be played", 2),
        (("speak", "Hi.", "-o", "a.wav", "--voice", "bob"), "unknown voice 'bob'; fake has", 2),
        (("speak", "Hi.", "-o", "a.wav", "--speed", "99"), "speed is 99", 2),
        (("speak", "Hi.", "-o", "a.wav", "--url", "nowhere"), "no address", 2),
        (
            ("speak", "Hi.", "-o", "a.wav", "--url", "http://127.0.0.1:9", "--wait", "0"),
            "nothing answers at http://127.0.0.1:9",
            1,
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    live: Live,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    expected: str,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAZEIA_URL", live.url)
    light = main(args)
    told = capsys.readouterr().err
    server = CliRunner().invoke(app, args)
    assert (light, server.exit_code) == (code, code)
    for lines in (told.splitlines(), server.stderr.splitlines()):
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert re.search(expected, lines[0])
    assert list(tmp_path.iterdir()) == []


def test_standard_input_without_text(live: Live, tmp_path: Path) -> None:
    done = ran(live, "speak", "-", "-o", tmp_path / "a.wav", stdin=b" \n")
    assert (done.returncode, done.stderr) == (2, b"error: standard input had no text\n")
    assert list(tmp_path.iterdir()) == []


def test_input_that_is_no_utf8(live: Live, tmp_path: Path) -> None:
    done = ran(live, "speak", "-", "-o", tmp_path / "a.wav", stdin=b"caf\xe9 au lait")
    assert (done.returncode, b"not UTF-8" in done.stderr) == (2, True)


def test_waiting_is_told(live: Live, tmp_path: Path) -> None:
    args = ("--url", "http://127.0.0.1:9", "--wait", "0.5")
    done = ran(live, "health", *args)
    assert done.returncode == 1
    assert done.stderr.startswith(b"waiting 0.")


def test_a_key(voice: FakeVoice, tmp_path: Path) -> None:
    with serving(voice, api_keys=("sesame",)) as live:
        refused = ran(live, "speak", "Hi.", "-o", tmp_path / "a.wav")
        assert refused.returncode == 1
        assert b"key is required" in refused.stderr
        assert b"--api-key or in KAZEIA_API_KEY" in refused.stderr
        assert ran(live, "voices", "--api-key", "sesame").returncode == 0
        done = ran(live, "speak", "Hi.", "-o", tmp_path / "a.wav", KAZEIA_API_KEY="sesame")
        assert done.returncode == 0


@pytest.mark.parametrize("command", [LIGHT, MAIN], ids=["kazeia-client", "kazeia"])
def test_ctrl_c_ends_the_speech(
    live: Live, voice: FakeVoice, tmp_path: Path, command: tuple[str, ...]
) -> None:
    voice.n_chunks = None
    out = tmp_path / "out.wav"
    with running(live, "speak", "-", "-o", out, command=command) as process:
        assert process.stdin is not None
        process.stdin.write(b"Endless ")
        process.stdin.flush()  # and kept open: nothing more is to be waited for
        until(lambda: out.exists() and out.stat().st_size > 44, 30)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    until(lambda: voice.open_now == 0)
    rate, pcm = frames_of(out)  # what was heard is a whole file
    assert (rate, len(pcm) % (FRAME * 2)) == (RATE, 0)


def test_a_reader_that_leaves(live: Live, voice: FakeVoice) -> None:
    voice.n_chunks = None
    with running(live, "speak", "Endless.", "-o", "-", command=LIGHT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1000)
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == b""
    until(lambda: voice.open_now == 0)


def test_help_and_version() -> None:
    for args in (("--help",), ("speak", "--help"), ("voices", "--help"), ("--version",)):
        done = subprocess.run([*LIGHT, *args], capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
    assert subprocess.run([*LIGHT], capture_output=True, timeout=60).returncode == 2
