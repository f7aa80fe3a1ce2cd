"""The facts of the machine, what it can do, and what follows for a model."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kazeia_engine import InvalidInput, Model, ModelFormatError
from kazeia_engine.modelfiles import GgufHeader, find_pair, read_header
from kazeia_engine.tools import machine, work
from kazeia_engine.tools.doctor import findings, outlooks
from kazeia_engine.tools.gguf_layout import PartTypes
from kazeia_engine.tools.machine import (
    CpuWatch,
    Machine,
    Speed,
    busy_warning,
    forget_peak_rss,
    peak_rss_bytes,
    usable_cores,
)
from kazeia_engine.tools.synth import shape_of, synth
from kazeia_engine.tools.work import PartWork, Work, estimate


def speed_of(gbs: float, gflops: float) -> Speed:
    return Speed(1, "scalar", "scalar", 256.0, gbs, gbs, gflops, gflops, 0.0)


def test_machine() -> None:
    here = Machine.here()
    assert here.cores >= 1
    assert here.memory_gb > 0.1
    assert json.loads(json.dumps(here.as_dict()))["cpu"] == here.cpu


def test_peak_memory_grows() -> None:
    before = peak_rss_bytes()
    block = np.ones(max(before, 1 << 26) // 8 + (1 << 23))  # more than ever before, all touched
    after = peak_rss_bytes()
    assert after >= block.nbytes
    del block
    assert peak_rss_bytes() > 0.95 * after  # the kernel's counters are inexact by some pages


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone can forget")
def test_peak_memory_is_forgotten() -> None:
    block = np.ones(1 << 26)
    del block
    before = peak_rss_bytes()
    forget_peak_rss()
    assert peak_rss_bytes() < before - (1 << 28)


def test_measured_speed() -> None:
    speed = Speed.measure(2, seconds=0.1)
    assert speed.threads == 2
    assert speed.working_set_mb > 1
    for figure in (speed.read_gbs_1, speed.read_gbs_n, speed.gflops_1, speed.gflops_n):
        assert math.isfinite(figure)
        assert figure > 0
    assert json.loads(json.dumps(speed.as_dict())) == speed.as_dict()
    assert Speed.measure(seconds=0.1).threads == usable_cores()


@pytest.mark.parametrize("wrong", [{"threads": 1025}, {"threads": -1}, {"seconds": 61.0}])
def test_measuring_refuses(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Speed.measure(**wrong)


@pytest.mark.alone
def test_others_are_seen() -> None:
    spin = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as other:
        watch = CpuWatch()
        time.sleep(1)
        foreign = watch.foreign_cores()
        other.kill()
    assert foreign is not None
    assert foreign > 0.2  # it may have to share its core with other tests


def test_own_work_is_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3 s of all processes, 2.5 s were of this one, in a second."""
    now = {"_busy_seconds": 100.0, "_own_seconds": 7.0}
    for name in now:
        monkeypatch.setattr(machine, name, lambda name=name: now[name])
    monkeypatch.setattr(machine.time, "perf_counter", iter([50.0, 51.0]).__next__)
    watch = CpuWatch()
    now.update(_busy_seconds=103.0, _own_seconds=9.5)
    assert watch.foreign_cores() == pytest.approx(0.5)


def test_own_work_includes_children_that_ended() -> None:
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    before = machine._own_seconds()
    subprocess.run([sys.executable, "-c", spin], check=True)
    assert machine._own_seconds() - before > 0.4


def test_load_is_unknown_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_busy_seconds", lambda: None)
    assert CpuWatch().foreign_cores() is None


def test_warning_of_other_processes() -> None:
    assert busy_warning(None) is None
    assert busy_warning(0.05) is None
    assert "1.5 cores" in (busy_warning(1.5) or "")


def test_work_of_the_released_model() -> None:
    made = Work.of_shape(shape_of("0.6b"), PartTypes.resolve("q8_0"))
    # 28 layers and the head; 16 positions through 5 layers and 15 heads of 2048 codes.
    layer = 1024 * (2048 + 2 * 1024 + 2048 + 3 * 3072)
    assert made.talker.macs == 28 * layer + 1024 * 3072
    assert made.cp.macs == 16 * 5 * layer + 15 * 1024 * 2048
    assert made.talker.read_bytes == made.talker.macs * 34 // 32
    assert made.cp.read_bytes == (15 * 5 * layer + 15 * 1024 * 2048) * 34 // 32
    assert made.decoder.macs == pytest.approx(2.48e9, rel=1e-3)
    assert made.decoder.flops == 2 * made.decoder.macs


def test_work_of_files_is_that_of_their_shape(tmp_path: Path) -> None:
    synth(tmp_path, size="tiny", type="q4_0")
    types = PartTypes.resolve("q4_0")
    assert Work.of_files(find_pair(tmp_path)) == Work.of_shape(shape_of("tiny"), types)


@pytest.mark.parametrize("kept", ["a.gen.wav.", "a.gen.code.blk.", "token_embd"])
def test_work_of_files_that_lack_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    synth(tmp_path, size="tiny")
    read = work.read_header

    def partly(path: Path) -> GgufHeader:
        header = read(path)
        few = {n: t for n, t in header.tensors.items() if n.startswith(kept)}
        return dataclasses.replace(header, tensors=few)

    pair = find_pair(tmp_path)
    monkeypatch.setattr(work, "read_header", partly)
    with pytest.raises(ModelFormatError, match=pair.talker.name):
        Work.of_files(pair)


def test_decoder_work_follows_its_shapes(golden_models: dict[str, Path]) -> None:
    """A frame's length in samples is the product of all strides, as the engine reads them."""
    pair = find_pair(golden_models["design"])
    tensors = read_header(pair.codec).tensors
    up = [tensors[f"a.gen.wav.up.blk.{i}.conv.weight"][0][0] for i in range(2)]
    dac = [tensors[f"a.gen.wav.dac.blk.{i}.conv.weight"][0][0] // 2 for i in range(4)]
    with Model.load(golden_models["design"]) as model:
        samples = model.info.sizes["samples_per_frame"]
    assert work._steps("dac.post_conv.weight", up, dac) == samples
    assert work._steps("dac.blk.3.res.0.conv1.weight", up, dac) == samples
    assert work._steps("dac.blk.3.conv.weight", up, dac) == samples // dac[3]
    assert work._steps("dac.entry.weight", up, dac) == up[0] * up[1]
    assert work._steps("up.blk.0.conv.weight", up, dac) == 1
    assert work._steps("up.blk.1.pw1.weight", up, dac) == up[0] * up[1]
    assert work._steps("pre_conv.weight", up, dac) == 1
    assert work._steps("quant.first.codebook.weight", up, dac) == 0


def test_estimate_adds_the_parts_up() -> None:
    parts = Work(PartWork(400_000_000, 1), PartWork(1, 500_000_000), PartWork(0, 1_000_000_000))
    made = estimate(parts, speed_of(10.0, 100.0))
    assert (made.talker_ms, made.cp_ms, made.decoder_ms) == pytest.approx((40.0, 10.0, 20.0))
    assert made.rtf == pytest.approx(70 / 80)


def test_outlook_follows_the_machine() -> None:
    fast, slow = outlooks(speed_of(1000, 1e5)), outlooks(speed_of(1, 10))
    assert {o.verdict for o in fast} == {"yes"}
    assert {o.verdict for o in slow} == {"no"}
    for table in (fast, slow):
        assert [o.model for o in table].count("0.6b") == [o.model for o in table].count("1.7b")
    by_name = {(o.model, o.formats): o for o in fast}
    # 1.65 G weights a frame at 8.5 bits, 12.5 frames a second: 22 GB a second.
    assert math.isclose(by_name["0.6b", "q8_0"].gb_per_second, 22, rel_tol=0.02)
    assert by_name["0.6b", "q8_0"].rtf < by_name["1.7b", "q8_0"].rtf
    smaller = by_name["1.7b", "talker q4_0, code predictor q8_0"]
    assert smaller.gb_per_second < by_name["1.7b", "q8_0"].gb_per_second


def test_findings_are_all_well() -> None:
    found = {f.what: f for f in findings()}
    assert all(f.ok for f in found.values()), [f for f in found.values() if not f.ok]
    build, _, instructions = found["ggml"].value.partition(": ")
    assert re.fullmatch(r"llama-cpp-python [\d.]+, libggml-cpu\S*", build)
    assert instructions  # none are known as long as the code for the processor is not loaded
    assert "libkazeia" in found["engine library"].value
