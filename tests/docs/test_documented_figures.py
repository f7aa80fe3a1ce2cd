"""Figures, tables and names in the documents are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, documents, name_of

from kazeia_server.app import create_app
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
    text = (ROOT / "server" / "OPERATIONS.md").read_text("utf-8")
    unnamed = [
        m
        for m in metrics()
        if m.startswith("kazeia_") and not re.search(r"_(bucket|sum|count)$", m) and m not in text
    ]
    assert unnamed == []
