"""The programs that `make test-clients` installs into environments of their own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "clients"


def installed(path: str) -> Path:
    """A file of the environments.  A test that needs one that is missing fails."""
    found = FOLDER / path
    if not found.exists():
        pytest.fail(f"build/clients/{path} is missing: `make test-clients` installs it")
    return found


def run(program: str, script: str, *arguments: str, orders: Any, **environment: str) -> Any:
    """What a script of this folder, run by the Python of the program, makes of the orders."""
    done = subprocess.run(
        [str(installed(f"{program}/bin/python")), str(HERE / script), *arguments],
        input=json.dumps(orders),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
