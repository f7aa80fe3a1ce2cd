"""The figures of `kazeia bench` and the facts of the machine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kazeia_engine import InvalidInput, ModelNotFound
from kazeia_engine.bench import bench
from kazeia_engine.doctor import findings, outlooks
from kazeia_engine.machine import Machine, bandwidth, gflops, peak_rss_bytes, usable_cores


@pytest.fixture(scope="module")
def figures(golden_models: dict[str, Path]) -> dict[str, object]:
    return bench(golden_models["custom-equal"], frames=12, repeat=2)


def test_keys_and_units(figures: dict, golden_models: dict[str, Path]) -> None:
    assert figures["rtf"] > 0
    assert figures["ttfb_ms"] > 0
    assert {"talker", "cp", "decoder", "bigvgan"} <= figures["stages_ms_per_frame"].keys()
    assert all(ms >= 0 for ms in figures["stages_ms_per_frame"].values())
    assert figures["stages_ms_per_frame"]["cp"] > 0
    assert figures["machine"]["cores"] == usable_cores()
    files = golden_models["custom-equal"].glob("*.gguf")
    assert figures["model_mb"] == round(sum(f.stat().st_size for f in files) / 1e6, 1)
    assert figures["rss_mb"] > figures["model_mb"]
    assert (figures["frames"], figures["repeat"], figures["chunk"]) == (12, 2, "auto")
    assert 10 < figures["text_tokens"] <= 19
    assert json.loads(json.dumps(figures)) == figures


def test_policies_do_the_same_work(figures: dict) -> None:
    policies = figures["policies"]
    assert set(policies) == {"auto", "1", "0"}
    assert len({p["fingerprint"] for p in policies.values()}) == 1
    assert (policies["1"]["n_chunks"], policies["0"]["n_chunks"]) == (12, 1)
    assert 1 < policies["auto"]["n_chunks"] < 12
    ratio = policies["1"]["wall_s"] / policies["0"]["wall_s"]
    assert math.isclose(figures["chunk1_over_chunk0"], ratio, rel_tol=0.05)
    assert policies["0"]["ttfb_ms"] > policies["1"]["ttfb_ms"]


def test_a_policy_of_ones_own(golden_models: dict[str, Path]) -> None:
    made = bench(golden_models["design"], frames=8, chunk=4, repeat=1)
    assert set(made["policies"]) == {"4", "auto", "1", "0"}
    assert made["policies"]["4"]["n_chunks"] == 2
    assert made["rtf"] == made["policies"]["4"]["rtf"]


@pytest.mark.parametrize("wrong", [{"frames": 0}, {"repeat": 0}])
def test_bad_input(golden_models: dict[str, Path], wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="expected 1 or more"):
        bench(golden_models["design"], **wrong)


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        bench(tmp_path / "none")


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


def test_measurements_are_plausible() -> None:
    assert 1e8 < bandwidth(1) < 1e13
    assert 0.1 < gflops() < 1e6


def test_outlook_counts_the_arithmetic_of_every_part() -> None:
    # 443 + 1210.5 million products of the language models a frame, 31 GMAC/s of the decoder.
    bound = outlooks(bytes_per_second=1e15, flops=2 * 51.67)
    rtf = next(o.best_rtf for o in bound if (o.model, o.formats) == ("0.6b", "q8_0"))
    assert rtf == pytest.approx(1.0, rel=1e-3)


def test_outlook_follows_the_machine() -> None:
    fast = outlooks(bytes_per_second=1e12, flops=1e5)
    slow = outlooks(bytes_per_second=1e9, flops=10)
    assert {o.verdict for o in fast} == {"yes"}
    assert {o.verdict for o in slow} == {"no"}
    for table in (fast, slow):
        assert [o.model for o in table].count("0.6b") == [o.model for o in table].count("1.7b")
    by_name = {(o.model, o.formats): o for o in fast}
    # 1.65 G weights a frame at 8.5 bits, 12.5 frames a second: 22 GB a second.
    assert math.isclose(by_name["0.6b", "q8_0"].gb_per_second, 22, rel_tol=0.02)
    bound = outlooks(bytes_per_second=22e9, flops=1e5)
    rtf = next(o.best_rtf for o in bound if (o.model, o.formats) == ("0.6b", "q8_0"))
    assert math.isclose(rtf, 1.0, rel_tol=0.02)


def test_findings_are_all_well() -> None:
    found = {f.what: f for f in findings()}
    assert all(f.ok for f in found.values()), [f for f in found.values() if not f.ok]
    assert "llama-cpp-python" in found["ggml"].value
    assert "libkazeia" in found["engine library"].value
