"""What is said on a processor that numpy was not built for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kazeia_engine import processor
from kazeia_engine.processor import missing_instructions, require_processor

CORE2 = "fpu sse sse2 ht syscall nx lm constant_tsc pni ssse3 cx16 sse4_1 lahf_lm"
NEHALEM = f"{CORE2} sse4_2 popcnt"


def cpuinfo(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: any\nflags\t\t: {flags}\nbugs\t: sse4_2\n")
    return path


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        (NEHALEM, []),
        (CORE2, ["POPCNT", "SSE4.2"]),
        (CORE2.replace("ssse3 ", "") + " popcnt sse4_2x", ["SSSE3", "SSE4.2"]),
        ("fpu sse2 cx16 pni lahf_lm", ["POPCNT", "SSSE3", "SSE4.1", "SSE4.2"]),
    ],
)
def test_what_a_processor_lacks(tmp_path: Path, flags: str, missing: list[str]) -> None:
    assert missing_instructions(cpuinfo(tmp_path, flags)) == missing


def test_nothing_is_missing_where_nothing_is_known(tmp_path: Path) -> None:
    assert missing_instructions(tmp_path / "none") == []
    arm = tmp_path / "arm"
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert missing_instructions(arm) == []


@pytest.mark.parametrize(("numpy", "runs"), [("1.26.4", True), ("2.3.5", True), ("2.4.0", False)])
def test_older_numpy_needs_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numpy: str, runs: bool
) -> None:
    monkeypatch.setattr(processor, "CPUINFO", cpuinfo(tmp_path, CORE2))
    monkeypatch.setattr(processor, "version", lambda _name: numpy)
    if runs:
        require_processor()
    else:
        with pytest.raises(ImportError, match=f"no POPCNT, SSE4.2: numpy {numpy} needs x86-64-v2"):
            require_processor()


def test_this_processor_runs_this_numpy() -> None:
    require_processor()


def on_an_old_processor(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code where numpy may not be imported, as on a processor that it does not run on."""
    before = (
        "import sys\nfrom kazeia_engine import processor\n"
        f"processor.CPUINFO = processor.Path({str(cpuinfo(folder, CORE2))!r})\n"
        "processor.version = lambda name: '2.4.0'\n"
        "sys.modules['numpy'] = None\n"
    )
    return subprocess.run(
        [sys.executable, "-c", before + code], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("command", ["say", "serve", "bench", "doctor", "convert"])
def test_every_command_says_so(tmp_path: Path, command: str) -> None:
    done = on_an_old_processor(tmp_path, f"from kazeia_server.cli import app; app([{command!r}])")
    assert done.returncode == 2
    assert done.stderr.startswith("error: this processor has no POPCNT, SSE4.2: numpy 2.4.0 needs")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["speak", "--help"]])
def test_what_needs_no_numpy_works(tmp_path: Path, arguments: list[str]) -> None:
    done = on_an_old_processor(tmp_path, f"from kazeia_server.cli import app; app({arguments})")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_library_says_so(tmp_path: Path) -> None:
    done = on_an_old_processor(tmp_path, "import kazeia_engine\nkazeia_engine.Model")
    assert done.returncode == 1
    assert "ImportError: this processor has no POPCNT, SSE4.2" in done.stderr
