"""Neighbours of a benchmark: busy processes, and llama.cpp on the same files."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kazeia_engine import EngineError, InvalidInput, Model
from kazeia_engine.modelfiles import ModelPair, find_pair
from kazeia_engine.tools.bench import Settings, bench, compare
from kazeia_engine.tools.bench.busy import slowdown, spinning
from kazeia_engine.tools.bench.compare import ENGINES, run_engine, why_not
from kazeia_engine.tools.machine import Speed
from kazeia_engine.tools.synth import synth

TEXT = "the quick fox"
RUN = {"frames": 4, "codebook": 2048, "threads": 2}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    """llama.cpp takes only codec vocabularies of the released size, which the goldens lack."""
    folder = tmp_path_factory.mktemp("synth")
    synth(folder, size="tiny", type="q8_0")
    return find_pair(folder)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int]) -> bool:
    """Whether they all end within some seconds."""
    for _ in range(200):
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_spinning_processes_are_pinned_and_end() -> None:
    with spinning(2) as pids:
        assert len(pids) == 2
        assert all(map(alive, pids))
        cores = [os.sched_getaffinity(pid) for pid in pids]
        assert all(len(c) == 1 for c in cores)
        assert len(set.union(*cores)) == min(2, len(os.sched_getaffinity(0)))
    assert not any(map(alive, pids))


def test_spinning_processes_end_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), spinning(1) as pids:
        raise KeyboardInterrupt
    assert not any(map(alive, pids))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_spinning_processes_end_with_their_parent(how: signal.Signals) -> None:
    code = (
        "import time; from kazeia_engine.tools.bench.busy import spinning\n"
        "with spinning(2) as pids: print(*pids, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.send_signal(how)
    assert gone(pids)


@pytest.mark.parametrize("n", [0, 257])
def test_so_many_cannot_spin(n: int) -> None:
    with pytest.raises(InvalidInput, match="busy"), spinning(n):
        pass


def test_a_process_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kazeia_engine.tools.bench.busy._SPIN", "raise SystemExit(1)")
    with pytest.raises(EngineError, match="could not be started"), spinning(1):
        pass


def test_slowdown(golden_models: dict[str, Path]) -> None:
    with Model.load(golden_models["design"]) as model:
        found = slowdown(model, 1, frames=6, repeat=3)
    assert found["processes"] == 1
    assert found["foreign_cores"] is None or found["foreign_cores"] >= 0
    assert len(found["slowdowns"]) == 3
    assert found["slowdown"] == pytest.approx(found["busy_s"] / found["alone_s"], rel=0.05)
    assert min(found["slowdowns"]) > 0


def beside_another(work: Callable[[], dict[str, Any]]) -> float:
    """The foreign cores that are told of work beside a process of somebody else."""
    spin = "import time\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as other:
        try:
            return float(work()["foreign_cores"])
        finally:
            other.kill()


def test_load_beside_a_ratio_is_told(golden_models: dict[str, Path], pair: ModelPair) -> None:
    with Model.load(golden_models["design"]) as model:
        assert beside_another(lambda: slowdown(model, 1, frames=20, repeat=1)) > 0.1
    assert beside_another(lambda: compare.compare(pair, TEXT, **RUN, repeat=1)) > 0.1


def test_the_installed_wheel_can_be_compared_with() -> None:
    """Where libmtmd is installed, the comparison must not find a reason against it."""
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    assert list((Path(spec.origin).parent / "lib").glob("*mtmd*"))
    assert why_not() is None


def test_both_engines_run_in_turn(pair: ModelPair) -> None:
    lines: list[str] = []
    made = compare.compare(pair, TEXT, **RUN, repeat=2, log=lines.append)
    assert made["frames"] == 72  # whole windows of llama.cpp's decoder
    assert [line.split(":")[0] for line in lines if "again without" not in line] == [
        f"{engine} {turn}/2" for turn in (1, 2) for engine in ENGINES
    ]
    assert made["repacked"] is not any("again without" in line for line in lines)
    for engine in ENGINES:
        for run in made["runs"][engine]:
            assert run["frames"] == 72
            assert run["audio_s"] == pytest.approx(72 * 0.08)
            assert run["rtf"] == pytest.approx(run["work_s"] / run["audio_s"])
            assert 0 < run["first_audio_s"] <= run["work_s"]
            assert run["peak_rss_mb"] > 9  # the files are loaded
            assert run["load_s"] > 0
    for key, ratio in made["ratios"].items():
        ours, theirs = (made["medians"][engine][key] for engine in ENGINES)
        assert ratio["median"] == pytest.approx(theirs / ours, rel=0.05), key
        assert 0 < ratio["min"] <= ratio["max"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_file_is_a_clear_error(pair: ModelPair, tmp_path: Path, engine: str) -> None:
    for file in (pair.talker, pair.codec):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    broken = ModelPair(tmp_path / pair.talker.name, tmp_path / pair.codec.name)
    broken.talker.write_bytes(pair.talker.read_bytes()[:5000])
    with pytest.raises(EngineError, match=rf"{engine} failed: .+") as caught:
        run_engine(engine, broken, TEXT, **RUN)
    assert "Traceback" not in str(caught.value)


def test_a_crash_is_a_clear_error(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    monkeypatch.setattr(compare, "_CHILD", child)
    for code, words in (
        ("import os; os.abort()", "SIGABRT"),
        ("raise SystemExit(3)", "exit code 3"),
        ("print('{}')", "no figures"),
        ("raise ValueError('odd')", "ValueError: odd"),
    ):
        child.write_text(code)
        with pytest.raises(EngineError, match=words):
            run_engine("llama.cpp", pair, TEXT, **RUN)


def test_llama_cpp_that_crashes_on_repacked_weights_runs_without(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    figures = {"work_s": 2.0, "audio_s": 1.0, "first_audio_s": 2.0, "peak_rss_mb": 9, "load_s": 1}
    child.write_text(
        "import os, signal, sys\n"
        "if sys.argv[1] == 'llama.cpp' and '--no-repack' not in sys.argv:\n"
        "    os.kill(os.getpid(), signal.SIGSEGV)\n"
        f"print({json.dumps(json.dumps(figures))})\n"
    )
    monkeypatch.setattr(compare, "_CHILD", child)
    lines: list[str] = []
    made = compare.compare(pair, TEXT, **RUN, repeat=2, log=lines.append)
    assert not made["repacked"]
    assert [len(made["runs"][engine]) for engine in ENGINES] == [2, 2]
    assert sum("SIGSEGV; again without repacked weights" in line for line in lines) == 1
    child.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    with pytest.raises(EngineError, match="kazeia failed: ended by SIGSEGV"):
        compare.compare(pair, TEXT, **RUN, repeat=1)


def test_a_hanging_run_is_ended(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, written = tmp_path / "child.py", tmp_path / "pid"
    child.write_text(f"import os, time; open({str(written)!r}, 'w').write(str(os.getpid()))\n"
                     "time.sleep(60)")  # fmt: skip
    monkeypatch.setattr(compare, "_CHILD", child)
    monkeypatch.setattr(compare, "_STARTING_S", 2.0)
    monkeypatch.setattr(compare, "_SECONDS_A_FRAME", 0.0)
    with pytest.raises(EngineError, match="took more than 2 s"):
        run_engine("kazeia", pair, TEXT, **RUN)
    assert gone([int(written.read_text())])


def test_a_run_ends_with_its_parent(pair: ModelPair) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from kazeia_engine.tools.bench.compare import run_engine\n"
        "from kazeia_engine.modelfiles import find_pair\n"
        "run_engine('llama.cpp', find_pair(Path(sys.argv[1])), 'the fox', frames=4000,"
        " codebook=2048, threads=1)"
    )
    with subprocess.Popen([sys.executable, "-c", code, pair.talker.parent]) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while not (pids := [int(pid) for pid in children.read_text().split()]):
            time.sleep(0.01)
        time.sleep(1.0)  # until it watches
        parent.kill()
    assert gone(pids)


def test_the_other_figures_stand_when_llama_cpp_fails(golden_models: dict[str, Path]) -> None:
    """llama.cpp refuses codec vocabularies that are not of the released size."""
    speed = Speed.measure(seconds=0.1)
    settings = Settings(frames=4, repeat=1, compare=True, busy=1)
    made = bench(golden_models["base"], settings, speed=speed)
    assert "llama.cpp failed" in made["compare"]["error"]
    assert "wrong shape" in made["compare"]["error"]
    assert made["rtf"] > 0
    assert made["busy"]["processes"] == 1


@pytest.mark.parametrize("missing", ["all of it", "the generation helper"])
def test_without_libmtmd(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    module = None
    if missing != "all of it":
        from llama_cpp import mtmd_cpp as module

        monkeypatch.delattr(module, "mtmd_helper_gen_audio_init")
    monkeypatch.setitem(sys.modules, "llama_cpp.mtmd_cpp", module)
    with pytest.raises(InvalidInput, match="--compare needs llama-cpp-python with libmtmd"):
        Settings(compare=True)
    assert Settings(compare=False).frames == 64
