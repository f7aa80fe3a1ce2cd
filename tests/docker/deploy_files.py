"""What the tests of docker/ share: the folder, the tools, and the image's own stage."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from kazeia_server.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
STEPS = DOCKER / "steps"
BIN = Path(sys.executable).parent
BUILDER = runpy.run_path(str(DOCKER / "build_in_chroot.py"))
SETTINGS = {PREFIX + name.upper() for name in Settings.model_fields}


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=240,
    )


def system_tool(name: str) -> str:
    """A program of the system; where it is missing the test is skipped, or fails on request."""
    # Debian keeps nginx where the path of an ordinary user does not reach.
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is not None:
        return found
    missing(f"{name} is not on the path")


def missing(what: str) -> NoReturn:
    message = f"THE FILES FOR SERVICES ARE NOT TESTED: {what}"
    if os.environ.get("KAZEIA_REQUIRE_SERVICES") == "1":
        pytest.fail(message)
    pytest.skip(message)


def last_stage(text: str) -> dict[str, list[str]]:
    """Instruction -> the arguments of each of its uses in the image's own stage."""
    found: dict[str, list[str]] = {}
    for name, arguments in BUILDER["instructions"](text):
        if name == "FROM":
            found = {}
        found.setdefault(name, []).append(arguments)
    return found
