"""The builder without a container engine: what it refuses, repeats, copies and ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deploy_files import BUILDER, DOCKER, run

DOCKERFILE = """
FROM --platform=$BUILDPLATFORM debian:trixie-slim AS build
ARG TARGETARCH
COPY one /docker/
RUN /docker/one "$TARGETARCH"
COPY folder /source/folder
RUN /docker/two
FROM debian:trixie-slim
RUN --mount=type=bind,source=steps,target=/steps /steps/last
COPY --from=build /source/ /
USER 10001:10001
"""
ALL_COMMANDS = ["build: /docker/one arm64", "build: /docker/two", "image: /steps/last"]


class Repository:
    """A small one, whose chroots run nothing but note what they would run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.out = root / "out"
        self.commands: list[str] = []
        self.failing = ""
        for name, content in {
            "docker/Dockerfile": DOCKERFILE,
            ".dockerignore": "*\n!one\n!folder\nfolder/tests\n**/*.pyc\n",
            "one": "1",
            "folder/a": "a",
            "folder/deep/b.py": "b",
            "folder/deep/b.pyc": "compiled",
            "folder/tests/t.py": "t",
            "steps/last": "last",
        }.items():
            self.write(name, content)
        (root / "folder/link").symlink_to("a")

    def write(self, name: str, content: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(content, "utf-8")

    def bootstrap(self, stage: Any, *_: str) -> None:
        (stage.root / "usr").mkdir(parents=True)

    def chroot(self, stage: Any, *command: str) -> None:
        self.commands.append(f"{stage.root.name}: {' '.join(command)}")
        if command[0] == self.failing:
            sys.exit("failed")

    def build(self) -> list[str]:
        """The commands that a call of the builder runs."""
        self.commands.clear()
        self.out.mkdir(exist_ok=True)
        BUILDER["build"]("arm64", self.out)
        return list(self.commands)

    def tree(self, stage: str) -> set[str]:
        root = self.out / stage
        return {str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir()}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    made = Repository(tmp_path)
    monkeypatch.setitem(BUILDER["build"].__globals__, "ROOT", tmp_path)
    monkeypatch.setattr(BUILDER["Stage"], "_bootstrap", lambda stage, *_: made.bootstrap(stage))
    monkeypatch.setattr(BUILDER["Stage"], "chroot", lambda stage, *c: made.chroot(stage, *c))
    monkeypatch.setattr(BUILDER["subprocess"], "check_output", lambda *_, **__: "amd64\n")
    return made


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        ("FROM debian:trixie-slim\nADD http://x/y /y\n", "ADD http://x/y /y is not understood"),
        ("FROM alpine:3\n", "FROM alpine:3: expected one of debian:trixie-slim"),
        ("FROM debian:trixie-slim\nCOPY nowhere /x\n", "COPY: there is no "),
    ],
)
def test_what_is_not_known_is_refused(planted: str, complaint: str, repository: Repository) -> None:
    repository.write("docker/Dockerfile", planted)
    with pytest.raises(SystemExit, match=re.escape(complaint)):
        repository.build()


def test_a_folder_of_others_is_not_touched(repository: Repository) -> None:
    repository.write("out/build/precious", "x")
    with pytest.raises(SystemExit, match="was not made by this program: name an empty folder"):
        repository.build()
    assert (repository.out / "build/precious").exists()


def test_copies_are_what_docker_would_copy(repository: Repository) -> None:
    assert repository.build() == ALL_COMMANDS
    copied = {"source/folder/a", "source/folder/deep/b.py", "source/folder/link"}
    assert repository.tree("build") == {"docker/one", *copied}
    assert (repository.out / "build/source/folder/link").is_symlink()
    assert repository.tree("image") == {"folder/a", "folder/deep/b.py", "folder/link"}


def no_change(repository: Repository) -> None:
    del repository


def script(repository: Repository) -> None:
    repository.write("one", "another")


def mode(repository: Repository) -> None:
    (repository.root / "one").chmod(0o700)


def folder(repository: Repository) -> None:
    repository.write("folder/deep/b.py", "c")


def ignored_file(repository: Repository) -> None:
    repository.write("folder/tests/t.py", "c")


def mounted(repository: Repository) -> None:
    repository.write("steps/last", "another")


@pytest.mark.parametrize(
    ("change", "repeated"),
    [
        (no_change, []),
        (script, ALL_COMMANDS[:2]),
        (mode, ALL_COMMANDS[:2]),
        (folder, ALL_COMMANDS[1:2]),
        (ignored_file, []),
        (mounted, ALL_COMMANDS[2:]),
    ],
)
def test_a_step_is_repeated_when_its_sources_changed(
    change: Callable[[Repository], None], repeated: list[str], repository: Repository
) -> None:
    repository.build()
    change(repository)
    assert repository.build() == repeated
    assert repository.build() == []


def test_a_file_that_is_gone_is_gone_from_the_image(repository: Repository) -> None:
    repository.build()
    (repository.root / "folder/a").unlink()
    (repository.root / "folder/link").unlink()
    repository.build()
    assert repository.tree("build") == {"docker/one", "source/folder/deep/b.py"}
    assert repository.tree("image") == {"folder/deep/b.py"}


def test_a_failed_step_is_done_again_and_those_before_it_are_not(repository: Repository) -> None:
    repository.failing = "/docker/two"
    with pytest.raises(SystemExit):
        repository.build()
    assert repository.commands == ALL_COMMANDS[:2]
    repository.failing = "/steps/last"
    with pytest.raises(SystemExit):
        repository.build()
    assert repository.commands == ALL_COMMANDS[1:]
    assert not (repository.out / "image/steps").exists()  # what was mounted does not stay
    repository.failing = ""
    assert repository.build() == ALL_COMMANDS[2:]


# ---- the machine -----------------------------------------------------------------------------


def refusal(architecture: str = "amd64") -> str:
    with pytest.raises(SystemExit) as caught:
        BUILDER["check_machine"](architecture)
    return str(caught.value)


def test_what_the_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert refusal() == "expected root: chroot and mount need it"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(BUILDER["shutil"], "which", lambda name: None)
    assert refusal() == "debootstrap is not on the path: apt install debootstrap util-linux"
    monkeypatch.setattr(BUILDER["shutil"], "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    foreign = "amd64" if os.uname().machine == "aarch64" else "arm64"
    assert "apt install qemu-user-static" in refusal(foreign)


def test_certificates_of_this_machine_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in os.environ if BUILDER["PASSED_ON"].fullmatch(n)]:
        monkeypatch.delenv(name)
    settings = BUILDER["registry_settings"]
    assert settings() == ([], "")
    file = tmp_path / "own.pem"
    file.write_text("a certificate", "utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    passed, certificates = settings()
    assert set(passed) == {
        "SSL_CERT_FILE=/run/certificates.pem",
        "https_proxy=http://proxy:3128",
    }
    assert certificates == str(file)
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "gone.pem"))
    with pytest.raises(SystemExit, match=r"PIP_CERT is .*gone\.pem, expected a file"):
        settings()


IN_THIS_ROOT = f"""
import os, runpy, signal, sys
from pathlib import Path
builder = runpy.run_path({str(DOCKER / "build_in_chroot.py")!r})
builder["end_on_signals"]()
stage = builder["Stage"].__new__(builder["Stage"])
stage.root = Path("/")
stage.chroot(*sys.argv[1:])
"""


def needs_namespaces() -> None:
    if os.geteuid() != 0 or run("unshare", "--mount", "--pid", "--fork", "true").returncode != 0:
        pytest.skip("WHAT A BUILD LEAVES BEHIND IS NOT TESTED: namespaces need root")


def test_mounts_end_with_the_command() -> None:
    needs_namespaces()
    before = Path("/proc/self/mounts").read_text("utf-8")
    command = ("sh", "-c", "echo $$; mount | grep -c ' on /run type tmpfs'; exit 3")
    done = run(sys.executable, "-c", IN_THIS_ROOT, *command)
    assert done.stdout.splitlines()[0] == "1"  # process 1 of its namespace
    assert int(done.stdout.splitlines()[1]) >= 1
    assert done.returncode == 1
    assert "failed with exit code 3; another call goes on there" in done.stderr
    assert Path("/proc/self/mounts").read_text("utf-8") == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_runs_inside(number: signal.Signals) -> None:
    needs_namespaces()
    builder = subprocess.Popen(
        [sys.executable, "-c", IN_THIS_ROOT, "sh", "-c", "echo up; sleep 1000 & wait"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert builder.stdout is not None
    with builder.stdout:
        assert builder.stdout.readline() == "up\n"
        builder.send_signal(number)
        assert builder.wait(30) == 128 + number
        # Whoever still held the pipe would keep it open.
        assert builder.stdout.read() == ""


# ---- the scripts that use an image -------------------------------------------------------------


@pytest.mark.parametrize("name", ["check_image.sh", "test_in_image.sh"])
def test_a_root_that_is_no_image_is_refused(name: str, tmp_path: Path) -> None:
    for arguments, complaint in (
        ((), f"usage: {DOCKER / name} ROOT, the tree of an image\n"),
        ((tmp_path,), f"{tmp_path} holds no usr/local/bin/kazeia: expected OUT/image\n"),
    ):
        done = run(DOCKER / name, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", complaint)
