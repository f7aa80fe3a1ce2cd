"""The Dockerfile and its steps: linted, complete, and true to the server's settings."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
import threading
from pathlib import Path, PurePosixPath

import pytest
from deploy_files import BIN, BUILDER, DOCKER, ROOT, SETTINGS, STEPS, last_stage, run
from fake_voice import FakeVoice
from live import serving

import kazeia_server
from kazeia_server.settings import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

instructions = BUILDER["instructions"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text("utf-8")
SCRIPTS = sorted([*STEPS.glob("*.sh"), *DOCKER.glob("*.sh")])
SOURCED = ("target.sh", "image_root.sh")


# ---- linters -----------------------------------------------------------------------------


def hadolint(text: str, folder: Path) -> str:
    file = folder / "Dockerfile"
    file.write_text(text, "utf-8")
    return run(BIN / "hadolint", "--no-color", file).stdout


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    assert hadolint(DOCKERFILE, tmp_path) == ""


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    assert "DL3009" in hadolint(DOCKERFILE + "RUN apt-get update\n", tmp_path)


def shellcheck(*files: Path) -> str:
    return run(BIN / "shellcheck", "-x", "-P", "SCRIPTDIR", *files).stdout


def test_shellcheck_finds_nothing() -> None:
    assert SCRIPTS
    assert shellcheck(*SCRIPTS) == ""


def test_shellcheck_would_find_something(tmp_path: Path) -> None:
    planted = tmp_path / "planted.sh"
    planted.write_text("#!/bin/sh\nrm -rf $1/bin\n", "utf-8")
    assert "SC2086" in shellcheck(planted)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_stops_at_the_first_failure(script: Path) -> None:
    assert run("sh", "-n", script).returncode == 0
    if script.name in SOURCED:
        return
    text = script.read_text("utf-8")
    assert text.startswith("#!/bin/sh\n")
    assert re.search(r"^set -eu$", text, re.M)
    assert os.access(script, os.X_OK)


# ---- steps -------------------------------------------------------------------------------


def called_scripts(text: str) -> list[str]:
    """The script of every RUN; anything else that is run is reported as it is."""
    found = []
    for name, arguments in instructions(text):
        if name != "RUN":
            continue
        words = [word for word in shlex.split(arguments) if not word.startswith("--mount=")]
        match = re.fullmatch(r"(?:/docker)?/steps/([a-z]+\.sh)", words[0])
        found.append(match[1] if match else words[0])
    return found


def test_every_run_is_a_script_and_every_script_is_run() -> None:
    called = called_scripts(DOCKERFILE)
    assert sorted([*called, "target.sh"]) == sorted(step.name for step in STEPS.iterdir())
    assert called_scripts(DOCKERFILE + "RUN apt-get update\n")[-1] == "apt-get"


def copied_from_context(text: str) -> list[str]:
    found = []
    for name, arguments in instructions(text):
        if name == "COPY" and "--from" not in arguments:
            found += shlex.split(arguments)[:-1]
    return found


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    patterns, ignored = BUILDER["ignore_patterns"](ROOT), BUILDER["ignored"]
    sources = copied_from_context(DOCKERFILE)
    assert {"pyproject.toml", "engine_native", "server"} <= set(sources)
    for source in [*sources, "docker/steps/runtime.sh", "engine_native/include/kazeia.h"]:
        assert (ROOT / source).exists(), source
        assert not ignored(source, patterns), source
    for source in (".git", "tests/conftest.py", "build/x", "models/a.gguf", ".env"):
        assert ignored(source, patterns), source
    assert ignored("engine_native/tests/CMakeLists.txt", patterns)
    assert ignored("server/kazeia_server/__pycache__/app.pyc", patterns)


def missing_packages(text: str) -> list[str]:
    """Folders that the wheel is made of and that no COPY brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = project["tool"]["scikit-build"]["wheel"]["packages"].values()
    copied = [PurePosixPath(source) for source in copied_from_context(text)]
    return [n for n in needed if not any(PurePosixPath(n).is_relative_to(c) for c in copied)]


def test_everything_the_wheel_holds_is_copied() -> None:
    assert missing_packages(DOCKERFILE) == []
    without = DOCKERFILE.replace("COPY clients/web/kazeia ", "COPY README.md ")
    assert missing_packages(without) == ["clients/web/kazeia"]


def target(architecture: str) -> str:
    script = f'. "{STEPS}/target.sh" {architecture} && echo "$machine $triplet $cmake_target"'
    done = run("bash", "-c", script)
    return done.stdout if done.returncode == 0 else done.stderr


def test_a_processor_is_known_or_refused() -> None:
    assert target("arm64").startswith("aarch64 aarch64-linux-gnu -DCMAKE_SYSTEM_NAME=Linux")
    assert "x86_64-linux-gnu-g++" in target("amd64")
    assert target("riscv64") == "expected amd64 or arm64, got 'riscv64'\n"


def test_scikit_build_core_waits_for_a_slow_cmake() -> None:
    """It gives up after five seconds, which a busy machine needs, and on a CI after twenty."""
    program = "from scikit_build_core import program_search as p; print(p.compute_timeout('cmake'))"
    script = f'. "{STEPS}/target.sh" arm64 && exec "$0" -c "$1"'
    assert run("bash", "-c", script, sys.executable, program).stdout == "20\n"
    assert run("env", "-u", "CI", sys.executable, "-c", program).stdout == "5\n"


def test_the_pin_is_found_in_pyproject() -> None:
    command = re.search(
        r"^pin=\$\((sed .*?)\"\$pyproject\"\)$", (STEPS / "llama.sh").read_text(), re.M
    )
    assert command is not None
    done = run("bash", "-c", f"{command[1]} pyproject.toml")
    assert re.fullmatch(r"llama-cpp-python==\d+\.\d+\.\d+\n", done.stdout)


# ---- the image -----------------------------------------------------------------------------


def test_image_runs_as_nobody_and_stops_on_sigterm() -> None:
    stage = last_stage(DOCKERFILE)
    user, group = stage["USER"][-1].split(":")
    assert int(user) >= 10_000
    assert int(group) >= 10_000
    made = (STEPS / "runtime.sh").read_text("utf-8")
    assert f"--uid {user} --gid {group} --home-dir /nonexistent" in made
    assert f"-o {user} -g {group} {stage['VOLUME'][0]}\n" in made
    assert stage["STOPSIGNAL"] == ["SIGTERM"]
    # A shell in between would be process 1 and keep the signal to itself.
    assert json.loads(stage["ENTRYPOINT"][0]) == ["kazeia"]
    assert json.loads(stage["CMD"][0]) == ["serve"]


def test_image_agrees_with_the_settings() -> None:
    stage = last_stage(DOCKERFILE)
    defaults = Settings.model_fields
    ports = {str(defaults["port"].default), str(defaults["wyoming_port"].default)}
    assert set(stage["EXPOSE"][0].split()) == ports
    environment = dict(word.split("=", 1) for word in shlex.split(stage["ENV"][0]))
    assert {name for name in environment if name.startswith("KZTTS_")} <= SETTINGS
    assert environment["KZTTS_HOST"] == "0.0.0.0"  # on 127.0.0.1 no other container reaches it
    # The scripts that use an image without an engine set the same.
    as_run = (DOCKER / "image_root.sh").read_text("utf-8")
    assert all(f" {name}={value} " in as_run for name, value in environment.items())
    assert f"--userspec={stage['USER'][-1]} " in as_run
    labels = dict(word.split("=", 1) for word in shlex.split(stage["LABEL"][0]))
    assert labels["org.opencontainers.image.version"] == kazeia_server.__version__
    assert all(name.startswith("org.opencontainers.image.") for name in labels)
    start = re.search(r"--start-period=(\d+)m ", stage["HEALTHCHECK"][0])
    assert start is not None
    assert int(start[1]) >= 5


# ---- the health check ------------------------------------------------------------------------


def health(port: int | str, host: str = "0.0.0.0") -> tuple[int, str]:
    done = run(DOCKER / "healthcheck.py", KZTTS_PORT=str(port), KZTTS_HOST=host)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_health_check_tells_ready_draining_and_gone() -> None:
    voice = FakeVoice(n_chunks=None)
    with serving(voice, shutdown_timeout_s=30) as live:
        port = live.port
        code, answer = health(port)
        assert (code, json.loads(answer)["status"]) == (0, "ready")
        assert health(port, "127.0.0.1")[0] == 0
        live.service.state = "draining"
        code, answer = health(port)
        assert code == 1
        assert json.loads(answer)["error"]["code"]
    code, answer = health(port)
    assert code == 1
    assert answer.startswith(f"no answer at 0.0.0.0, port {port}: ")


@pytest.mark.parametrize(
    ("listening", "asked"),
    [
        ("127.0.0.1", ("127.0.0.1", "localhost", "0.0.0.0", "")),
        ("0.0.0.0", ("0.0.0.0", "127.0.0.1")),
        ("::", ("::", "::1")),  # of IPv6 alone: 127.0.0.1 would get no answer
        ("::1", ("::1",)),
    ],
)
def test_health_check_asks_where_the_server_listens(listening: str, asked: tuple[str, ...]) -> None:
    with serving(FakeVoice(n_chunks=1), host=listening) as live:
        for host in asked:
            assert health(live.port, host)[0] == 0, host


def answering_once(answer: bytes) -> tuple[int, threading.Thread]:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return server.getsockname()[1], thread


def test_health_check_fails_in_words_for_what_is_no_server() -> None:
    port, thread = answering_once(b"220 mail.example ESMTP\r\n")
    code, answer = health(port, "127.0.0.1")
    thread.join()
    assert code == 1
    assert answer.startswith(f"no answer at 127.0.0.1, port {port}: BadStatusLine(")
    for port_text in ("http", "70000"):
        code, answer = health(port_text)
        assert code == 1
        assert answer.startswith(f"no answer at 0.0.0.0, port {port_text}: ")
