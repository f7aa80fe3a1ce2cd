"""Figures, tables and names in the documents are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, documents, name_of

from kazeia_engine.binding import stage_names
from kazeia_server.app import create_app
from kazeia_server.ops import auth
from kazeia_server.settings import Settings

FIGURES = ROOT / "engine_native" / "figures"
sys.path.insert(0, str(FIGURES))

import boards  # noqa: E402
import latency  # noqa: E402

PERF = latency.PERF.read_text("utf-8")


@pytest.mark.parametrize("script", ["latency.py", "boards.py"])
def test_what_is_committed_is_what_the_script_makes(script: str) -> None:
    command = [sys.executable, FIGURES / script, "--check"]
    assert subprocess.run(command, timeout=60).returncode == 0, (
        f"run engine_native/figures/{script}"
    )


def test_another_measurement_makes_another_picture() -> None:
    assert latency.draw(latency.read_figures(PERF)) == latency.PICTURE.read_text("utf-8")
    changed = re.sub(r"(again \| \| \d+ / )177", r"\g<1>178", PERF)
    assert latency.draw(latency.read_figures(changed)) != latency.PICTURE.read_text("utf-8")


def test_a_measurement_without_the_figures_is_passed_over() -> None:
    entry = "# Measurements\n\n## 2030-01-01: only something else\n\n"
    assert latency.read_figures(PERF.replace("# Measurements\n", entry, 1)) == latency.read_figures(
        PERF
    )
    with pytest.raises(LookupError, match="streaming_again"):
        latency.read_figures(PERF.replace("streaming text", "other text"))


def test_the_parts_of_a_frame_are_its_whole() -> None:
    ms = latency.read_figures(PERF).ms
    assert ms["pre-transformer"] + ms["upsampling"] + ms["vocoder"] <= ms["decoder"]


def test_the_picture_says_what_its_bars_say() -> None:
    picture = latency.draw(latency.read_figures(PERF))
    bars = [int(ms) for ms in re.findall(r">(\d+) ms</text>", picture)][:4]
    assert f'aria-label="First sound {min(bars)} to {max(bars)} ms' in picture


def test_the_servers_share_is_that_of_the_layout() -> None:
    figures = latency.read_figures(PERF)
    assert (figures.server_streaming_ms, figures.server_whole_ms) == (4.7, 3.7)
    changed = re.sub(r"(3\.5 \(3\.9\) ms \| )3\.7", r"\g<1>9.5", PERF)
    assert latency.read_figures(changed).server_whole_ms == 9.5
    assert latency.read_figures(changed).server_streaming_ms == 4.7


def test_a_colour_means_one_thing() -> None:
    for colours in latency.STYLE.split("@media"):
        fills = dict(
            re.findall(r"\.(engine|server|talker|cp|pre|vocoder) {\s*fill: (\S+)", colours)
        )
        assert len(fills) == len(set(fills.values())) == 6


def test_another_table_is_seen() -> None:
    page = boards.PAGE.read_text("utf-8")
    assert boards.filled(page.replace("| 22.0 |", "| 23.0 |")) == page
    assert page.count("| 22.0 |") == 1
    with pytest.raises(LookupError, match="0 places for the table 'needs'"):
        boards.filled(page.replace("<!-- needs -->", ""))


def test_what_real_time_needs_by_hand() -> None:
    """The 0.6B model in q8_0, from the widths in MODEL.md."""
    hidden, ffn, heads, kv = 1024, 3072, 16 * 128, 8 * 128
    layer = hidden * (2 * heads + 2 * kv) + 3 * hidden * ffn
    talker = 28 * layer + hidden * 3072
    cp = 15 * (5 * layer + hidden * 2048)
    gbs = (talker + cp) * 34 / 32 * 12.5 / 1e9
    assert f"{gbs:.1f}" == "22.0"
    assert (
        f"| 0.6B | q8_0 | {talker * 34 / 32 / 1e6:.0f} + {cp * 34 / 32 / 1e6:.0f} | 22.0 |"
        in boards.needs()
    )


def test_a_boards_rtf_by_hand() -> None:
    """2.58 GFLOP of the code predictor and 4.96 of the decoder a frame; the table has 0.471 GB."""
    assert boards.SHOWN == ("q8_0", "q4_0 talker, q8_0 CP")
    board = boards.Board(
        "a board", boards.Memory(20.0, "", ""), boards.Arithmetic("", measured=100.0)
    )
    rtf = (0.471 / 20 + 1.287 / 20 + 4.959 / 100) * 12.5
    assert boards.outlook(board, "0.6b", "q8_0") == f"{rtf:.1f}" == "1.7"


def test_what_no_program_reaches_is_marked() -> None:
    limit = boards.Memory(40.0, "", "", limit=True)
    read = boards.Memory(40.0, "", "")
    peak = boards.Arithmetic("", peak=(8, 3.0, 32))
    done = boards.Arithmetic("", hpl=384.0)
    assert peak.gflops == done.gflops == 768
    marked = [
        boards.outlook(boards.Board("a board", memory, arithmetic), "0.6b", "q8_0")
        for memory, arithmetic in ((read, done), (limit, done), (read, peak))
    ]
    assert marked == ["0.6", "above 0.6", "above 0.6"]
    assert boards.share(boards.Board("a board", read), "0.6b", "q8_0") == "55%"
    assert boards.share(boards.Board("a board", limit), "0.6b", "q8_0") == "above 55%"


def test_a_board_is_in_one_table() -> None:
    known, unknown = boards.boards(), boards.unknown()
    for board in boards.BOARDS:
        assert (f"| {board.name} |" in known) != (f"| {board.name} |" in unknown)
        assert (f"| {board.name} |" in unknown) == (board.arithmetic is None)


def memory_beside_the_files(text: str) -> list[str]:
    """GB that a process needs beside its model's files, wherever a text says it."""
    return re.findall(r"files (?:and|\+) ([\d.]+) GB", " ".join(text.split()))


def test_memory_is_one_figure_and_the_measured_one() -> None:
    told = {name_of(d): memory_beside_the_files(d.read_text("utf-8")) for d in documents()}
    told = {name: figures for name, figures in told.items() if figures}
    assert {"docs/operation.md", "docs/performance.md", "docker/README.md"} <= set(told)
    newest = re.search(r"peak memory <= file \+ \d+ MB \(\+ (\d+) MB\)", PERF)
    assert newest is not None
    measured = f"{int(newest[1]) / 1000:.1f}"
    assert {name: f for name, f in told.items() if set(f) != {measured}} == {}
    assert memory_beside_the_files("the\nfiles and\n0.5 GB") == ["0.5"]


def metrics() -> set[str]:
    """The names a server's /metrics can show."""
    registry = create_app(Settings(wyoming_port=None)).state.metrics.registry
    found = set()
    for family in registry.collect():
        ends = {"counter": ("_total",), "histogram": ("", "_bucket", "_sum", "_count")}
        found |= {family.name + end for end in ends.get(family.type, ("",))}
    return found


@pytest.mark.parametrize(
    "document", [d for d in documents() if "/metrics" in d.read_text("utf-8")], ids=name_of
)
def test_metrics_exist(document: Path) -> None:
    """Where metrics are spoken of: their names, and not those of our Python packages."""
    text = document.read_text("utf-8")
    named = set(re.findall(r"(?<![\w/.])kazeia_[a-z_]+(?![\w./])", text))
    assert named - metrics() - {"kazeia_engine", "kazeia_server", "kazeia_client"} == set()


def test_operations_names_every_metric() -> None:
    text = (ROOT / "docs" / "operation.md").read_text("utf-8")
    unnamed = [
        m
        for m in metrics()
        if m.startswith("kazeia_") and not re.search(r"_(bucket|sum|count)$", m) and m not in text
    ]
    assert unnamed == []


def test_security_names_every_open_path() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    listed = text.partition("Open without a key")[2].partition("They name")[0]
    named = set(re.findall(r"`(/[^`]*)`", listed))
    assert named == auth._PUBLIC_PATHS | {"/web/"}


def test_every_stage_is_explained() -> None:
    perf = PERF.partition("| `prefill` |")
    explained = (perf[1] + perf[2]).partition("`--compare`")[0]
    assert set(re.findall(r"`([a-z]+)`", explained)) - {"bench"} == set(stage_names())
    row = re.search(r"kazeia_stage_seconds_total.*", (ROOT / "docs/operation.md").read_text())
    assert row is not None
    profiled_only = {"quant", "preconv", "pretr", "upsample", "bigvgan"}
    assert set(re.findall(r"`([a-z]+)`", row[0])) == set(stage_names()) - profiled_only
