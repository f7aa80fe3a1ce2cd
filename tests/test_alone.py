"""A test marked `alone` has the machine for itself in a parallel run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOG = """
import os, pytest, time

def log(text):
    with open("log", "a") as file:
        file.write(text + "\\n")
"""
MEASURES = """
def test_the_others_have_begun():
    while not os.path.exists("log"):
        time.sleep(0.01)

{mark}
def test_measures():
    log("begin")
    time.sleep(0.3)
    log("end")
"""
OTHERS = """
@pytest.mark.parametrize("n", range(50))
def test_other(n):
    log("other")
    time.sleep(0.02)
"""


@pytest.mark.parametrize(("mark", "others"), [("@pytest.mark.alone", 0), ("", 1)])
def test_others_wait_for_what_is_alone(tmp_path: Path, mark: str, others: int) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n", "utf-8")
    (tmp_path / "test_a.py").write_text(LOG + MEASURES.format(mark=mark), "utf-8")
    (tmp_path / "test_b.py").write_text(LOG + OTHERS, "utf-8")
    options = ("-n", "2", "--dist", "loadfile", "-p", "xdist", "--basetemp", tmp_path / "tmp")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert "52 passed" in done.stdout, done.stdout + done.stderr
    lines = (tmp_path / "log").read_text("utf-8").split()
    between = lines[lines.index("begin") + 1 : lines.index("end")]
    assert min(len(between), 1) == others
