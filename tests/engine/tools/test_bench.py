"""The figures of `kazeia bench`."""

from __future__ import annotations

import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kazeia_engine import InvalidInput, ModelNotFound
from kazeia_engine.tools.bench import Settings, bench, bench_synthetic, tables
from kazeia_engine.tools.bench.compare import ENGINES
from kazeia_engine.tools.bench.figures import generator, stage_rows, verdict
from kazeia_engine.tools.bench.runs import Spread
from kazeia_engine.tools.machine import Speed, usable_cores
from kazeia_engine.tools.work import PartWork, Work

KEYS = {
    "busy", "chunk", "chunk1_over_chunk0", "compare", "devices", "estimate", "first_audio",
    "foreign_cores", "formats", "frames", "generator", "load_s", "machine", "model", "model_mb",
    "policies", "repeat", "rss_mb", "rss_over_model_mb", "rtf", "sizes", "stages",
    "stages_ms_per_frame", "text_tokens", "ttfb_ms", "verdict", "version",
}  # fmt: skip
LAYOUTS = ["whole text", "streaming text", "streaming text, 2000 characters"]


@pytest.fixture(scope="module")
def speed() -> Speed:
    return Speed.measure(seconds=0.1)


@pytest.fixture(scope="module")
def told() -> list[tuple[str, int, int]]:
    """The steps of the run of `figures`."""
    return []


@pytest.fixture(scope="module")
def figures(
    golden_models: dict[str, Path], speed: Speed, told: list[tuple[str, int, int]]
) -> dict[str, Any]:
    settings = Settings(frames=12, repeat=2)
    return bench(
        golden_models["custom-equal"], settings, speed=speed, step=lambda *s: told.append(s)
    )


def finite(value: Any) -> bool:
    """Whether every number in it is."""
    if isinstance(value, dict):
        return all(finite(v) for v in value.values())
    if isinstance(value, list):
        return all(finite(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


def test_keys_and_units(figures: dict[str, Any], golden_models: dict[str, Path]) -> None:
    assert figures.keys() == KEYS
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
    assert (figures["busy"], figures["compare"]) == (None, None)
    assert finite(figures)
    assert json.loads(json.dumps(figures)) == figures


def test_policies_do_the_same_work(figures: dict[str, Any]) -> None:
    policies = figures["policies"]
    assert set(policies) == {"auto", "1", "0"}
    assert len({p["fingerprint"] for p in policies.values()}) == 1
    assert (policies["1"]["n_chunks"], policies["0"]["n_chunks"]) == (12, 1)
    assert 1 < policies["auto"]["n_chunks"] <= 12
    ratio = policies["1"]["wall_s"] / policies["0"]["wall_s"]
    assert math.isclose(figures["chunk1_over_chunk0"], ratio, rel_tol=0.05)


def test_first_audio_by_layout(figures: dict[str, Any]) -> None:
    heard = figures["first_audio"]
    assert list(heard) == LAYOUTS
    measured = [of for of in heard.values() if of is not None]
    assert len(measured) >= 2
    for of in measured:
        for spread in (of["first"], of["cached"]):
            assert 0 < spread["min"] <= spread["median"] <= spread["p90"]
            assert spread["runs"] in (1, 2)


def test_the_steps_are_told_in_order(
    figures: dict[str, Any], told: list[tuple[str, int, int]]
) -> None:
    names = [what for what, _, _ in told]
    assert names == ["loading", "chunk auto", "chunk 1", "chunk 0", "first audio", "done"]
    assert [(done, all) for _, done, all in told] == [(i, 5) for i in range(6)]


def test_a_policy_of_ones_own(golden_models: dict[str, Path], speed: Speed) -> None:
    made = bench(golden_models["design"], Settings(frames=8, chunk=4, repeat=1), speed=speed)
    assert set(made["policies"]) == {"4", "auto", "1", "0"}
    assert made["policies"]["4"]["n_chunks"] == 2
    assert made["rtf"] == made["policies"]["4"]["rtf"]


def test_synthetic_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines: list[str] = []
    made = bench_synthetic("tiny", Settings(frames=4, repeat=1), type="q8_0", log=lines.append)
    assert made["model"] == "synth-tiny"
    assert made["formats"]["cp"] == "q8_0"
    assert list(tmp_path.iterdir()) == []
    assert next(line for line in lines if "rtf" in line).startswith("estimate: ")
    assert lines[0].startswith("memory ")


@pytest.mark.parametrize("wrong", [{"size": "9b"}, {"type": "q99"}])
def test_synthetic_of_what_is_unknown(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        bench_synthetic(**{"size": "tiny", "settings": Settings(), **wrong})


def test_synthetic_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda _path: Full)
    with pytest.raises(OSError, match="TMPDIR"):
        bench_synthetic("tiny", Settings(frames=1, repeat=1))


@pytest.mark.parametrize(
    "wrong",
    [{"frames": 0}, {"repeat": 0}, {"busy": -1}, {"busy": 257}, {"threads": 0}, {"threads": 1025}],
)
def test_bad_settings(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Settings(**wrong)


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        bench(tmp_path / "none", Settings())


def test_stages_in_bytes_and_operations() -> None:
    work = Work(PartWork(400_000_000, 400_000_000), PartWork(1, 1), PartWork(0, 2_000_000_000))
    speed = Speed(2, "scalar", "scalar", 256.0, 10.0, 20.0, 50.0, 100.0, 0.0)
    rows = stage_rows({"prefill": 3.0, "talker": 50.0, "cp": 0.0, "decoder": 100.0}, work, speed)
    assert rows[0] == {"stage": "prefill", "ms": 3.0}
    # 0.4 GB in 50 ms are 8 GB/s, 0.8 GFLOP in 50 ms 16 GFLOP/s.
    assert rows[1]["gbs"] == {"rate": 8.0, "of_1": 0.8, "of_n": 0.4}
    assert rows[1]["gflops"] == {"rate": 16.0, "of_1": 0.32, "of_n": 0.16}
    assert "gbs" not in rows[2]  # no time, no rate
    assert rows[3]["gflops"] == {"rate": 40.0, "of_1": 0.8, "of_n": 0.4}
    assert "gbs" not in rows[3]


def test_shares_follow_from_the_stages(figures: dict[str, Any]) -> None:
    measured = figures["machine"]["speed"]
    row = next(r for r in figures["stages"] if r["stage"] == "cp")
    assert row["ms"] == figures["stages_ms_per_frame"]["cp"]
    rate = row["read_mb"] / row["ms"]
    assert row["gbs"]["rate"] == pytest.approx(rate, rel=0.01)
    assert row["gbs"]["of_1"] == pytest.approx(rate / measured["read_gbs_1"], rel=0.02)


def test_generator_over_its_passes() -> None:
    stages = {"talker": 20.0, "cp": 34.0, "decoder": 9.0}
    assert generator(stages, None) == {"ms": 54.0, "passes_ms": None, "overhead": None}
    assert generator(stages, (0.018, 0.032)) == {"ms": 54.0, "passes_ms": 50.0, "overhead": 0.08}


def test_spread() -> None:
    spread = Spread.of([0.003, 0.001, 0.002, *[0.004] * 6, 0.010])
    assert spread.as_dict() == {"min": 1.0, "median": 4.0, "p90": 4.0, "runs": 10}
    assert Spread.of([0.005]).as_dict() == {"min": 5.0, "median": 5.0, "p90": 5.0, "runs": 1}


@pytest.mark.parametrize(
    ("rtf", "words"),
    [(0.4, "2.5 times faster"), (0.95, "just enough"), (1.4, "1.4 times slower than real time")],
)
def test_verdict(rtf: float, words: str) -> None:
    assert words in verdict(rtf, 90.0)
    assert ("chunk auto will stall" in verdict(rtf, 90.0)) == (rtf > 1)


def test_tables_show_every_stage(figures: dict[str, Any]) -> None:
    out = io.StringIO()
    busy = {"processes": 1, "slowdown": 1.5, "slowdowns": [1.25, 1.75], "foreign_cores": None}
    tables.show(Console(file=out, width=160), {**figures, "busy": busy})
    text = out.getvalue()
    for word in (*figures["stages_ms_per_frame"], *LAYOUTS, figures["verdict"][:40]):
        assert word in text
    assert "1.50 times as long (1.25 to 1.75)" in text


@pytest.mark.parametrize(("cores", "marked"), [(None, False), (0.05, False), (0.7, True)])
@pytest.mark.parametrize("of", ["busy", "compare"])
def test_ratios_measured_under_load_are_marked(
    figures: dict[str, Any], of: str, cores: float | None, marked: bool
) -> None:
    four = ("rtf", "first_audio_s", "peak_rss_mb", "load_s")
    measured = {
        "processes": 1, "slowdown": 1.5, "slowdowns": [1.25, 1.75],
        "threads": 2, "frames": 72, "medians": dict.fromkeys(ENGINES, dict.fromkeys(four, 1.0)),
        "repacked": True,
        "ratios": {key: {"median": 1.5, "min": 1.25, "max": 1.75} for key in four},
        "foreign_cores": cores,
    }  # fmt: skip
    out = io.StringIO()
    quiet = {"foreign_cores": 0.0}
    machine = {**figures["machine"], "speed": {**figures["machine"]["speed"], **quiet}}
    shown = {**figures, **quiet, "machine": machine, "busy": None, "compare": None, of: measured}
    tables.show(Console(file=out, width=160), shown)
    text = out.getvalue()
    assert text.count("1.50*") == (0 if not marked else 1 if of == "busy" else 4)
    assert ("* other processes kept 0.7 cores busy" in text) == marked
    assert "warning" not in text


def test_progress_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with tables.progress(console, pytest.fail) as (log, step):
        step("loading", 0, 4)
        log("a line")
        step("done", 4, 4)
    assert "a line" in out.getvalue()
    assert "4/4" in out.getvalue()
