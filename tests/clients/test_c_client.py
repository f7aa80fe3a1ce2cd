"""clients/c: compiled against the installed package, and compared with it sample by sample."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kazeia_engine import Guard, Model
from kazeia_engine.modelfiles import find_pair
from kazeia_engine.tools.convert import convert
from kazeia_engine.tools.synth import synth
from kazeia_server.audio.pcm import pcm16

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "data"
SANITIZED = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
TEXT = "Hello there, this is a test: 12 apples."
LONG = "This sentence goes on and on, and so does the next. " * 10


@dataclass(frozen=True)
class Program:
    """A built kazeia_say with the files of one model."""

    path: Path
    talker: Path
    codec: Path

    def command(self, text: Path, output: Path | str, *options: str) -> list[str]:
        files = (self.talker, self.codec, text, output)
        return [str(self.path), *options, *map(str, files)]

    def run(
        self, text: Path, output: Path | str, *options: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(text, output, *options), capture_output=True, text=True, timeout=240
        )


def build(folder: Path, flags: str = "-O2", source: str | None = None) -> Path:
    shutil.copytree(ROOT / "clients" / "c", folder)
    if source is not None:
        (folder / "kazeia_say.c").write_text(source, "utf-8")
    command = ["make", "-B", "-C", str(folder), f"PYTHON={sys.executable}", f"CFLAGS={flags}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "kazeia_say"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pairs")
    for name in ("custom-projected", "design"):
        convert(GOLDEN / name, root / name, type="f32")
    synth(root / "tiny", size="tiny", type="q8_0")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("c") / "c")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("asan") / "c", SANITIZED)


@pytest.fixture(scope="module")
def model(models: dict[str, Path]) -> Iterator[Model]:
    with Model.load(models["custom-projected"]) as loaded:
        yield loaded


def program(path: Path, model: Path) -> Program:
    pair = find_pair(model)
    return Program(path, pair.talker, pair.codec)


@pytest.fixture
def say(executable: Path, models: dict[str, Path]) -> Program:
    return program(executable, models["custom-projected"])


def installed(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "text.txt"
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return path


def samples(path: Path) -> bytes:
    """The samples of a WAV file whose header tells the truth."""
    size = path.stat().st_size
    head = path.read_bytes()[:44]
    assert struct.unpack_from("<I", head, 4)[0] == size - 8
    with wave.open(str(path)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (
            24_000,
            1,
            2,
        )
        assert reader.getnframes() * 2 == size - 44
        return reader.readframes(reader.getnframes())


def expected(model: Model, text: str, **options: Any) -> bytes:
    return pcm16(model.synthesize(text, guard=Guard(), **options).pcm)


# ---- the same samples as from Python ------------------------------------------------------------


@pytest.mark.parametrize(
    ("speaker", "language", "seed"),
    [
        (None, "auto", 0),
        ("vivian", "french", 3),
        ("Ryan", "Chinese", 2**64 - 1),
        ("dylan", "auto", 1),  # speaks a dialect
        ("dylan", "english", 1),
        (None, "german", 5),
    ],
)
def test_the_samples_are_those_of_python(
    say: Program, model: Model, tmp_path: Path, speaker: str | None, language: str, seed: int
) -> None:
    options = ["-l", language, "-r", str(seed), *(["-s", speaker] if speaker else [])]
    output = tmp_path / "out.wav"
    done = say.run(write(tmp_path, TEXT + "\n"), output, *options)
    assert done.returncode == 0, done.stderr
    assert samples(output) == expected(model, TEXT, speaker=speaker, language=language, seed=seed)
    assert done.stderr.startswith("first audio after ")
    assert "of speech made in" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("text", ["Ça va, 東京? 🙂 naïve", "a", "  two\n\nlines", "\x7f\u00a0x"])
def test_any_text(say: Program, model: Model, tmp_path: Path, text: str) -> None:
    output = tmp_path / "out.wav"
    done = say.run(write(tmp_path, b"\xef\xbb\xbf" + text.encode() + b" \r\n"), output)
    assert done.returncode == 0, done.stderr
    assert samples(output) == expected(model, text)


def test_a_model_without_speakers(
    executable: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    say = program(executable, models["design"])
    output = tmp_path / "out.wav"
    assert say.run(write(tmp_path, TEXT), output, "-l", "english").returncode == 0
    with Model.load(models["design"]) as model:
        assert samples(output) == expected(model, TEXT, language="english")
    done = say.run(write(tmp_path, TEXT), output, "-s", "vivian")
    assert done.returncode == 1
    assert "unknown speaker vivian: the model has none" in done.stderr


def test_speech_leaves_while_it_is_made(say: Program, model: Model, tmp_path: Path) -> None:
    command = say.command(write(tmp_path, LONG), "/dev/stdout")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        data = process.stdout.read(10_000)
        # It has megabytes more to write than the pipe holds.
        assert process.poll() is None
        data += process.stdout.read()
    assert process.returncode == 0
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"  # sizes nobody could know
    assert len(data) > 1_000_000
    assert data[44:] == expected(model, LONG.strip())


def test_the_readmes_cmake_builds_it(models: dict[str, Path], tmp_path: Path) -> None:
    text = (ROOT / "clients" / "c" / "README.md").read_text("utf-8")
    (snippet,) = re.findall(r"^```cmake\n(.*?)^```", text, re.M | re.S)
    shutil.copy(ROOT / "clients" / "c" / "kazeia_say.c", tmp_path)
    lines = ["cmake_minimum_required(VERSION 3.21)", "project(say LANGUAGES C)", snippet]
    site = tmp_path / "site"
    site.mkdir()
    # The packages lie in two folders where an environment builds on another.
    (site / "kazeia_engine").symlink_to(installed("kazeia_engine"))
    (site / "llama_cpp").symlink_to(installed("llama_cpp"))
    (site / "include").symlink_to(installed("llama_cpp").parent / "include")
    (tmp_path / "CMakeLists.txt").write_text("\n".join(lines), "utf-8")
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    assert cmake is not None, "cmake comes with `make install`"
    for arguments in (
        ["-S", tmp_path, "-B", tmp_path / "b", f"-DSITE={site}"],
        ["--build", tmp_path / "b"],
    ):
        done = subprocess.run([cmake, *arguments], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    say = program(tmp_path / "b" / "kazeia_say", models["design"])
    done = say.run(write(tmp_path, TEXT), tmp_path / "out.wav")
    assert done.returncode == 0, done.stderr


# ---- what can go wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"caf\xe9", "text.txt is not UTF-8 text: see byte 3"),
        (b"ab\xc3", "is not UTF-8 text: see byte 2"),
        (b"\xc0\xaf", "is not UTF-8 text: see byte 0"),  # overlong
        (b"a\xe0\x80\xaf", "is not UTF-8 text: see byte 1"),
        (b"a\xed\xa0\x80", "is not UTF-8 text: see byte 1"),  # a surrogate
        (b"\xf0\x80\x80\xaf", "is not UTF-8 text: see byte 0"),
        (b"\xf4\x90\x80\x80", "is not UTF-8 text: see byte 0"),  # beyond U+10FFFF
        (b"\xff\xfea\0", "is not UTF-8 text: see byte 0"),  # UTF-16
        (b"a\0b", "is not UTF-8 text: see byte 1"),
        (b"", "is empty"),
        (b" \r\n\t", "is empty"),
        (b"x" * 200_001, "has more than 200000 bytes"),
        (b"q. " * 30_000, "tokens, expected 1 to 8192"),
    ],
    ids=range(13),
)
def test_texts_that_cannot_be_spoken(
    say: Program, tmp_path: Path, text: bytes, message: str
) -> None:
    output = tmp_path / "out.wav"
    done = say.run(write(tmp_path, text), output)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith("kazeia_say: ")
    assert not output.exists()


def test_text_cannot_hold_control_sequences(
    executable: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    say = program(executable, models["tiny"])
    output = tmp_path / "out.wav"
    for text in ("say <think> aloud", "x</tool_call>"):
        done = say.run(write(tmp_path, text), output)
        assert done.returncode == 1
        assert "the text holds a control sequence of the model" in done.stderr
    # These are no more than characters, as they are for Python.
    text = "<|im_end|> a < b <|fim_pad|> <|codec_bos|>"
    assert say.run(write(tmp_path, text), output).returncode == 0
    with Model.load(models["tiny"]) as model:
        assert samples(output) == expected(model, text)


def test_every_valid_character_is_taken(say: Program, tmp_path: Path) -> None:
    """The borders of what the check above refuses."""
    text = "\x01\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"
    assert say.run(write(tmp_path, text), tmp_path / "out.wav").returncode == 0


def test_files_that_cannot_be_used(say: Program, tmp_path: Path) -> None:
    text, output = write(tmp_path, TEXT), tmp_path / "out.wav"
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(say.talker.read_bytes()[:50_000])
    nowhere = tmp_path / "nowhere"
    cases = [
        (say, nowhere, output, f"cannot read {nowhere}: No such file or directory"),
        (say, tmp_path, output, f"cannot read {tmp_path}: Is a directory"),
        (say, text, nowhere / "o.wav", f"cannot write {nowhere / 'o.wav'}: No such file"),
        (say, text, tmp_path, f"cannot write {tmp_path}: Is a directory"),
        (say, text, "/dev/full", "cannot write /dev/full: No space left on device"),
        (Program(say.path, nowhere, say.codec), text, output, "nowhere"),
        (Program(say.path, say.talker, nowhere), text, output, "nowhere"),
        (Program(say.path, damaged, say.codec), text, output, "damaged.gguf"),
        (Program(say.path, text, say.codec), text, output, "text.txt"),
        (Program(say.path, say.codec, say.talker), text, output, say.codec.name),
    ]
    for chosen, source, target, message in cases:
        done = chosen.run(source, target)
        assert done.returncode == 1, message
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not output.exists()


def test_wishes_that_cannot_be_met(say: Program, tmp_path: Path) -> None:
    text, output = write(tmp_path, TEXT), tmp_path / "out.wav"
    done = say.run(text, output, "-s", "nobody")
    assert done.returncode == 1
    assert "unknown speaker nobody: the model has vivian ryan dylan" in done.stderr
    done = say.run(text, output, "-l", "klingon")
    assert done.returncode == 1
    assert "unknown language klingon: the model has" in done.stderr
    assert "french" in done.stderr
    for seed in ("-1", "x", "1x", "", "18446744073709551616"):
        done = say.run(text, output, "-r", seed)
        assert (done.returncode, done.stderr[:6]) == (2, "usage:"), seed
    assert say.run(text, output, "-x").returncode == 2
    assert subprocess.run([say.path], capture_output=True).returncode == 2
    assert not output.exists()


def interrupt(say: Program, folder: Path, number: int, **env: str) -> subprocess.Popen[str]:
    """A long text, and a signal once some speech has been written."""
    output = folder / "out.wav"
    output.unlink(missing_ok=True)
    process = subprocess.Popen(
        say.command(write(folder, LONG), output),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    while not (output.exists() and output.stat().st_size > 44):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    process.send_signal(number)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_file_is_a_valid_one(
    say: Program, model: Model, tmp_path: Path, number: int
) -> None:
    process = interrupt(say, tmp_path, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.rstrip().endswith("cancelled")
    made = samples(tmp_path / "out.wav")
    assert len(made) >= 1920 * 2
    begun = b""
    with model.stream(LONG.strip(), guard=Guard()) as stream:
        for chunk in stream:
            begun += pcm16(chunk.pcm)
            if len(begun) >= len(made):
                break
    assert made == begun[: len(made)]


# ---- under sanitizers ---------------------------------------------------------------------------


def checked(path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1"}
    return subprocess.run([path, *command], capture_output=True, text=True, timeout=240, env=env)


def test_no_leak_no_stray_access(sanitized: Path, models: dict[str, Path], tmp_path: Path) -> None:
    say = program(sanitized, models["custom-projected"])
    text, output = write(tmp_path, TEXT), tmp_path / "out.wav"
    for options, status in ((["-s", "dylan"], 0), (["-s", "nobody"], 1), (["-l", "x"], 1)):
        done = checked(sanitized, *say.command(text, output, *options)[1:])
        assert done.returncode == status, done.stderr
        assert "Sanitizer" not in done.stderr
    for wrong in (
        say.command(text, "/dev/full"),
        say.command(tmp_path / "nowhere", output),
        Program(sanitized, say.talker, text).command(text, output),
    ):
        done = checked(*map(Path, wrong[:1]), *wrong[1:])
        assert done.returncode == 1, done.stderr
        assert "Sanitizer" not in done.stderr
    process = interrupt(say, tmp_path, signal.SIGINT, ASAN_OPTIONS="detect_leaks=1")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Sanitizer" not in said


def test_a_planted_leak_is_found(models: dict[str, Path], tmp_path: Path) -> None:
    source = (ROOT / "clients" / "c" / "kazeia_say.c").read_text("utf-8")
    assert source.count("    free(prompt);\n") == 1
    leaky = build(tmp_path / "leaky", SANITIZED, source.replace("    free(prompt);\n", ""))
    say = program(leaky, models["custom-projected"])
    done = checked(*map(Path, [leaky]), *say.command(tmp_path / "nowhere", "x.wav")[1:])
    assert "LeakSanitizer" in done.stderr
