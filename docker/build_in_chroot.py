#!/usr/bin/env python3
"""Build docker/Dockerfile without a container engine: every stage is a chroot made by debootstrap.

    sudo docker/build_in_chroot.py amd64 OUT      # OUT/image is the tree of the image

Needs root, debootstrap and, for the other processor's image, qemu-user-static with binfmt_misc. It
knows the instructions that this Dockerfile uses and refuses others. Steps that are done are not
repeated; delete OUT to begin again.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITES = {"debian:trixie-slim": "trixie"}
PASSED_ON = re.compile(r"PIP_\w+|SSL_CERT_\w+|\w+_proxy|CMAKE_BUILD_PARALLEL_LEVEL")
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


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments), continued lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    pairs = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name.upper(), rest.strip()) for name, _, rest in pairs]


class Stage:
    """One FROM: a root folder, and a record of the steps that it has behind it."""

    def __init__(self, root: Path, image: str, architecture: str) -> None:
        self.root = root
        self.record = root.with_suffix(".steps")
        if image not in SUITES:
            sys.exit(f"FROM {image}: expected one of {', '.join(SUITES)}")
        done = self.record.read_text("utf-8").splitlines() if self.record.exists() else []
        self.done = done
        self.position = 0
        self.step(f"FROM {image} {architecture}", lambda: self._bootstrap(image, architecture))

    def step(self, name: str, action: Callable[[], None]) -> None:
        """Run `action` unless it was done, in this place, by an earlier call."""
        if self.position < len(self.done) and self.done[self.position] == name:
            self.position += 1
            return
        sys.stderr.write(f"==== {self.root.name}: {name}\n")
        action()
        self.done = [*self.done[: self.position], name]
        self.position += 1
        self.record.write_text("\n".join(self.done) + "\n", "utf-8")

    def _bootstrap(self, image: str, architecture: str) -> None:
        command = ["debootstrap", "--variant=minbase", f"--arch={architecture}", "--foreign"]
        packages = ["--include=ca-certificates"] if self.root.name == "build" else []
        subprocess.run([*command, *packages, SUITES[image], self.root], check=True)
        self.chroot("/debootstrap/debootstrap", "--second-stage")

    def chroot(self, *command: str) -> None:
        """Run a command inside, with the registry settings of this machine."""
        passed = [f"{k}={v}" for k, v in os.environ.items() if PASSED_ON.fullmatch(k)]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        for folder in ("proc", "dev"):
            (self.root / folder).mkdir(exist_ok=True)
        # The mounts end with the namespace, so that nothing of them can be left behind or deleted.
        script = 'mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; exec chroot "$@"'
        inside = ["env", "-i", path, "HOME=/root", "LANG=C.UTF-8", *passed, *command]
        subprocess.run(
            ["unshare", "-m", "sh", "-ec", script, "sh", str(self.root), *inside], check=True
        )

    def copy(self, source: Path, target: str) -> None:
        """COPY one source, as Docker does: what a folder holds, or a file by its name."""
        place = self.root / target.lstrip("/")
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", "tests")
            if source.is_relative_to(ROOT):
                shutil.copytree(source, place, dirs_exist_ok=True, symlinks=True, ignore=ignore)
            else:
                shutil.copytree(source, place, dirs_exist_ok=True, symlinks=True)
            return
        place = place / source.name if target.endswith("/") else place
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place)


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
    text = " ".join([name, *words])
    if name == "COPY":
        base = ROOT
        if words[0].startswith("--from="):
            base = stages[words.pop(0).partition("=")[2]].root
        target = words[-1]
        for source in words[:-1]:
            path = base / source.lstrip("/")
            stage.step(f"COPY {source} {target}", partial(stage.copy, path, target))
        return
    if words[0].startswith("--mount="):
        options = dict(o.partition("=")[::2] for o in words.pop(0)[8:].split(","))
        steps, inside = ROOT / options["source"], stage.root / options["target"].lstrip("/")

        def mounted() -> None:
            shutil.copytree(steps, inside)
            try:
                stage.chroot(*words)
            finally:
                shutil.rmtree(inside)

        stage.step(text, mounted)
        return
    stage.step(text, lambda: stage.chroot(*words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("architecture", choices=["amd64", "arm64"])
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    root = build(arguments.architecture, out)
    size = subprocess.check_output(["du", "-xsm", root], text=True).split()[0]
    sys.stderr.write(f"{root}: {size} MiB\n")


if __name__ == "__main__":
    main()
