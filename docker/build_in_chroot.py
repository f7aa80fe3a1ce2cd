#!/usr/bin/env python3
"""Build docker/Dockerfile without a container engine: every stage is a chroot made by debootstrap.

    sudo docker/build_in_chroot.py amd64 OUT      # OUT/image is the tree of the image

Needs root, debootstrap and, for the other processor's image, qemu-user-static with binfmt_misc. It
knows the instructions that this Dockerfile uses and refuses others. As a container engine does, it
repeats a step whose sources have changed, and those that follow; unlike one it repeats them in the
tree as it is. Delete OUT to begin again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITES = {"debian:trixie-slim": "trixie"}
PASSED_ON = re.compile(r"PIP_\w+|SSL_CERT_FILE|\w+_proxy|CMAKE_BUILD_PARALLEL_LEVEL", re.I)
CERTIFICATES = "/run/certificates.pem"
FOR_THE_ENGINE = (
    "LABEL",
    "USER",
    "WORKDIR",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
    "ENV",
)  # what the engine applies when it starts the image
# $1 is the root, $2 a file of certificates or nothing, then the command.  The mounts and processes
# end with the namespaces, so that nothing of them can be left behind, or deleted with the tree.
IN_ROOT = f"""
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
[ -z "$2" ] || cp "$2" "$1{CERTIFICATES}"
root=$1
shift 2
exec chroot "$root" "$@"
"""


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments), continued lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    pairs = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name.upper(), rest.strip()) for name, _, rest in pairs]


def ignored(path: str, patterns: list[str]) -> bool:
    """Whether .dockerignore keeps `path` out of the build: the last pattern that fits decides."""
    verdict = False
    for pattern in patterns:
        name = pattern.removeprefix("!")
        expression = re.escape(name).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if re.match(expression + "(?:/|$)", path):
            verdict = not pattern.startswith("!")
    return verdict


def ignore_patterns(context: Path) -> list[str]:
    lines = (context / ".dockerignore").read_text("utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def files_below(source: Path, patterns: list[str]) -> list[Path]:
    """Every file and link of a folder, or of a file alone, in an order that does not change.

    `patterns` are those of .dockerignore for a source in the repository.
    """
    if not source.exists():
        sys.exit(f"COPY: there is no {source}")
    if not source.is_dir():
        return [source]
    found = [p for p in source.rglob("*") if p.is_symlink() or not p.is_dir()]
    if patterns:
        found = [p for p in found if not ignored(p.relative_to(ROOT).as_posix(), patterns)]
    return sorted(found)


def fingerprint(source: Path, files: list[Path]) -> str:
    """Of names, contents, links and whether a file can be run."""
    digest = hashlib.sha256()
    for file in files:
        content = os.readlink(file).encode() if file.is_symlink() else file.read_bytes()
        mode = "link" if file.is_symlink() else oct(file.stat().st_mode & 0o777)
        digest.update(f"{file.relative_to(source)} {mode} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


def run(command: list[str], shown: str) -> None:
    """Run a command; where it fails, say so in one line and end."""
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"{shown} failed with exit code {done.returncode}; another call goes on there")


def registry_settings() -> tuple[list[str], str]:
    """What a command inside gets of this environment, and the certificates it is to trust."""
    passed = {k: v for k, v in os.environ.items() if PASSED_ON.fullmatch(k)}
    certificates = ""
    for name in ("SSL_CERT_FILE", "PIP_CERT"):  # pip's, where they differ: pip is who asks
        if passed.get(name):
            certificates = passed[name]
            passed[name] = CERTIFICATES
            if not Path(certificates).is_file():
                sys.exit(f"{name} is {certificates}, expected a file of certificates")
    return [f"{name}={value}" for name, value in passed.items()], certificates


class Stage:
    """One FROM: a root folder, and a record of the steps that it has behind it."""

    def __init__(self, root: Path, image: str, architecture: str) -> None:
        self.root = root
        self.record = root.with_suffix(".steps")
        if image not in SUITES:
            sys.exit(f"FROM {image}: expected one of {', '.join(SUITES)}")
        if root.exists() and not self.record.exists():
            sys.exit(f"{root} was not made by this program: name an empty folder")
        self.done = self.record.read_text("utf-8").splitlines() if self.record.exists() else []
        self.position = 0
        self.step(f"FROM {image} {architecture}", lambda: self._bootstrap(image, architecture))

    def step(self, name: str, action: Callable[[], None]) -> None:
        """Run `action` unless it was done, in this place, by an earlier call."""
        if self.position < len(self.done) and self.done[self.position] == name:
            self.position += 1
            return
        # What follows is not done any more, even if this step fails half-way.
        self._note(self.done[: self.position])
        sys.stderr.write(f"==== {self.root.name}: {name}\n")
        action()
        self.position += 1
        self._note([*self.done, name])

    def _note(self, done: list[str]) -> None:
        self.done = done
        written = self.record.with_suffix(".new")
        written.write_text("".join(f"{name}\n" for name in done), "utf-8")
        written.replace(self.record)

    def _bootstrap(self, image: str, architecture: str) -> None:
        if self.root.exists():
            shutil.rmtree(self.root)
        command = ["debootstrap", "--variant=minbase", f"--arch={architecture}", "--foreign"]
        packages = ["--include=ca-certificates"] if self.root.name == "build" else []
        run([*command, *packages, SUITES[image], str(self.root)], f"debootstrap of {self.root}")
        self.chroot("/debootstrap/debootstrap", "--second-stage")

    def chroot(self, *command: str) -> None:
        """Run a command inside, with the registry settings of this machine."""
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        for folder in ("proc", "dev", "run"):
            (self.root / folder).mkdir(exist_ok=True)
        settings, certificates = registry_settings()
        inside = ["env", "-i", path, "HOME=/root", "LANG=C.UTF-8", *settings, *command]
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        root = str(self.root)
        run([*alone, "sh", "-ec", IN_ROOT, "sh", root, certificates, *inside], " ".join(command))

    def copy(self, name: str, source: Path, target: str, patterns: list[str]) -> None:
        """COPY one source, as Docker does: what a folder holds, or a file by its name."""
        place = self.root / target.lstrip("/")
        files = files_below(source, patterns)
        if not source.is_dir():
            place = place / source.name if target.endswith("/") else place
        step = f"COPY {name} {target} {fingerprint(source, files)}"
        self.step(step, lambda: self._copy(source, files, place))

    def _copy(self, source: Path, files: list[Path], place: Path) -> None:
        # A step that is done again leaves nothing of the last time.
        listed = self.root.with_suffix(f".copied-{self.position}")
        last = listed.read_text("utf-8").splitlines() if listed.exists() else []
        for line in last:
            (self.root / line).unlink(missing_ok=True)
        copies = [place / file.relative_to(source) for file in files]
        listed.write_text("".join(f"{c.relative_to(self.root)}\n" for c in copies), "utf-8")
        for file, copied in zip(files, copies, strict=True):
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.unlink(missing_ok=True)
            shutil.copy2(file, copied, follow_symlinks=False)


def build(architecture: str, out: Path) -> Path:
    """Every stage of the Dockerfile below `out`; the root of the last one."""
    native = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, arguments in instructions((ROOT / "docker/Dockerfile").read_text("utf-8")):
        if name == "FROM":
            match = re.fullmatch(r"(--platform=\$BUILDPLATFORM )?(\S+)(?: AS (\S+))?", arguments)
            if match is None:
                sys.exit(f"FROM {arguments} is not understood")
            label = match[3] or "image"
            stage = stages[label] = Stage(
                out / label, match[2], native if match[1] else architecture
            )
            continue
        if name in FOR_THE_ENGINE or (name, arguments) == ("ARG", "TARGETARCH"):
            continue
        if stage is None or name not in ("COPY", "RUN"):
            sys.exit(f"{name} {arguments} is not understood")
        perform(stage, stages, name, shlex.split(arguments.replace("$TARGETARCH", architecture)))
    assert stage is not None
    return stage.root


def perform(stage: Stage, stages: dict[str, Stage], name: str, words: list[str]) -> None:
    """One COPY or RUN."""
    if name == "COPY":
        base, patterns = ROOT, ignore_patterns(ROOT)
        if words[0].startswith("--from="):
            base, patterns = stages[words.pop(0).partition("=")[2]].root, []
        for source in words[:-1]:
            stage.copy(source, base / source.strip("/"), words[-1], patterns)
        return
    if not words[0].startswith("--mount="):
        stage.step(" ".join([name, *words]), lambda: stage.chroot(*words))
        return
    options = dict(o.partition("=")[::2] for o in words.pop(0)[8:].split(","))
    steps, inside = ROOT / options["source"], stage.root / options["target"].lstrip("/")

    def mounted() -> None:
        shutil.copytree(steps, inside, dirs_exist_ok=True)
        try:
            stage.chroot(*words)
        finally:
            shutil.rmtree(inside)

    content = fingerprint(steps, files_below(steps, []))
    stage.step(f"RUN --mount={options['source']} {' '.join(words)} {content}", mounted)


def check_machine(architecture: str) -> None:
    """Name what is missing before anything is made."""
    if os.geteuid() != 0:
        sys.exit("expected root: chroot and mount need it")
    for program in ("debootstrap", "dpkg", "unshare", "chroot"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not on the path: apt install debootstrap util-linux")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[architecture]
    emulation = Path(f"/proc/sys/fs/binfmt_misc/qemu-{machine}")
    if machine != os.uname().machine and not emulation.exists():
        sys.exit(f"this machine does not run programs for {machine}: apt install qemu-user-static")


def end_on_signals() -> None:
    """A signal ends what runs inside, too: subprocess kills it, and with it its namespace."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: sys.exit(128 + received))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("architecture", choices=["amd64", "arm64"])
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    check_machine(arguments.architecture)
    end_on_signals()
    os.umask(0o022)
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another call is at work in {out}")
        root = build(arguments.architecture, out)
    size = subprocess.check_output(["du", "-xsm", root], text=True).split()[0]
    sys.stderr.write(f"{root}: {size} MiB\n")


if __name__ == "__main__":
    main()
