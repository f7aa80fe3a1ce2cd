"""The examples and the README of the client, run as they are against a real server."""

from __future__ import annotations

import os
import queue
import re
import shlex
import subprocess
import sys
import threading
import wave
from pathlib import Path

import pytest
from client_tools import spoken
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, until

CLIENT = Path(__file__).parents[2] / "clients" / "python"
EXAMPLES = sorted((CLIENT / "examples").glob("*.py"))
DOUBLE = Path(__file__).parent / "sounddevice_double"
README = (CLIENT / "README.md").read_text("utf-8")
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
COMMANDS = [line for line in re.findall(r"^ {4}(\S.*)$", README, re.M) if "kazeia-client " in line]


def environment(live: Live, played: Path) -> dict[str, str]:
    path = os.pathsep.join((str(DOUBLE), os.environ.get("PYTHONPATH", "")))
    added = {"KAZEIA_URL": live.url, "SOUNDDEVICE_DOUBLE": str(played), "PYTHONPATH": path}
    return {**os.environ, **added}


def run(
    live: Live, tmp_path: Path, *args: str | Path, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment(live, tmp_path / "played"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done


def pcm_of(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        assert file.getframerate() == RATE
        return file.readframes(file.getnframes())


def test_every_example_is_tested_and_documented() -> None:
    text = Path(__file__).read_text("utf-8")
    for example in EXAMPLES:
        assert f'EXAMPLE / "{example.name}"' in text
        assert f"(examples/{example.name})" in README
    assert len(EXAMPLES) == 3


EXAMPLE = CLIENT / "examples"


def test_a_model_to_speech(live: Live, voice: FakeVoice, tmp_path: Path) -> None:
    example = EXAMPLE / "llm_to_speech.py"
    done = run(live, tmp_path, example, "story.wav", stdin="Il était une fois")
    assert pcm_of(tmp_path / "story.wav") == spoken(voice, 3)
    assert done.stdout == "0.24 s of speech, ended: eos\n"
    assert voice.texts == ["Il était une fois"]
    run(live, tmp_path, example, stdin="Aloud this time.")
    assert (tmp_path / "played").read_bytes() == spoken(voice, 3)


def test_saving_while_playing(live: Live, voice: FakeVoice, tmp_path: Path) -> None:
    done = run(live, tmp_path, EXAMPLE / "save_while_playing.py", "Hello.", "hello.wav")
    assert pcm_of(tmp_path / "hello.wav") == (tmp_path / "played").read_bytes() == spoken(voice, 3)
    assert done.stdout == "0.24 s in hello.wav\n"


def test_an_agent_that_is_interrupted(live: Live, voice: FakeVoice, tmp_path: Path) -> None:
    """The first answer would never end; the second is heard to its end, on the same connection."""
    voice.n_chunks = None
    played = tmp_path / "played"
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE / "barge_in.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(live, played),
    )
    lines: queue.Queue[str] = queue.Queue()
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            output = process.stdout
            reader = threading.Thread(target=lambda: [lines.put(line.strip()) for line in output])
            reader.start()
            print("first", file=process.stdin, flush=True)
            assert lines.get(timeout=30) == "speaking: first"
            until(lambda: played.exists() and played.stat().st_size > 5 * FRAME * 2, 30)
            print("second", file=process.stdin, flush=True)
            assert lines.get(timeout=10) == "interrupted: first"
            until(lambda: voice.streams[0].cancelled.is_set())  # the server is silent too
            voice.n_chunks = 4
            assert lines.get(timeout=10) == "speaking: second"
            assert lines.get(timeout=10) == "finished: second"
            process.stdin.close()
            assert process.wait(20) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
            reader.join(5)
        finally:
            process.kill()
    assert played.read_bytes().endswith(spoken(voice, voice.streams[1].made, stream=1))
    assert len(voice.streams) == 2
    calls = played.with_suffix(".calls").read_text().split()
    assert calls == [
        *("24000", "start", "abort", "close"),
        *("24000", "start", "stop", "close"),
    ]


@pytest.mark.parametrize("number", range(len(PYTHON_BLOCKS)))
def test_the_python_of_the_readme_runs(live: Live, tmp_path: Path, number: int) -> None:
    file = tmp_path / "block.py"
    file.write_text(PYTHON_BLOCKS[number], "utf-8")
    run(live, tmp_path, file)


def test_the_commands_of_the_readme_run(live: Live, tmp_path: Path) -> None:
    assert len(COMMANDS) == 4
    for command in COMMANDS:
        here = command.replace("kazeia-client", f"{shlex.quote(sys.executable)} -m kazeia_client")
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {here}"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env=environment(live, tmp_path / "played"),
        )
        assert done.returncode == 0, (command, done.stderr)
    assert {"hello.wav", "spoken.mp3"} <= {path.name for path in tmp_path.iterdir()}


def test_the_readme_has_what_it_promises() -> None:
    assert len(PYTHON_BLOCKS) >= 4
