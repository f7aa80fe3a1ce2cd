"""Draws latency.svg: what the first sound waits for, and what a frame of 80 ms costs.

    python engine_native/figures/latency.py [--check]

The figures are read from PERF.md, the newest entry that has them all.  `--check` writes nothing and
fails if the committed picture is not the one PERF.md gives.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
PICTURE = HERE / "latency.svg"
PERF = HERE.parent / "PERF.md"

FRAME_MS = 80.0
WIDTH, LEFT, RIGHT = 820, 236, 792  # of the picture; of the bars
ROW, BAR = 30, 18

# What a figure is called -> where PERF.md has it: one number a pattern, in milliseconds.
PATTERNS = {
    "streaming_first": r"streaming text: first in a voice / again \| \| (\d+) / \d+",
    "streaming_again": r"streaming text: first in a voice / again \| \| \d+ / (\d+)",
    "whole_first": r"whole text, 19 tokens: first in a voice / again \| \| (\d+) / \d+",
    "whole_again": r"whole text, 19 tokens: first in a voice / again \| \| \d+ / (\d+)",
    "talker": r"^\| talker \| ([\d.]+):",
    "cp": r"^\| code predictor \| ([\d.]+):",
    "decoder": r"^\| decoder \| ([\d.]+):",
    "pre-transformer": r"^\| decoder \|.*pre-transformer ([\d.]+)",
    "upsampling": r"^\| decoder \|.*upsampling ([\d.]+)",
    "vocoder": r"^\| decoder \|.*vocoder ([\d.]+)",
}
# Of the model's column, below the line of the same layout.
SERVER = r"first audio, WebSocket, {} \|.*\n\| of it added by the server, .*? ms \| ([\d.]+) "

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px }
  .note { fill: #59636e; font-size: 12px }
  .number { text-anchor: start }
  .label { text-anchor: end }
  .inside { fill: #ffffff; text-anchor: middle; font-size: 12px }
  .panel { fill: #ffffff; stroke: #d1d9e0 }
  .engine { fill: #0969da } .server { fill: #9a6700 } .talker { fill: #1a7f37 }
  .cp { fill: #8250df } .pre { fill: #1b7c83 } .vocoder { fill: #bf3989 }
  .limit { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 5 3 }
  .limit-text { fill: #cf222e; font-size: 12px }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .note { fill: #9198a1 } .inside { fill: #ffffff }
    .panel { fill: #0d1117; stroke: #3d444d }
    .engine { fill: #1f6feb } .server { fill: #d29922 } .talker { fill: #238636 }
    .cp { fill: #8957e5 } .pre { fill: #2b7489 } .vocoder { fill: #bf4b8a }
    .limit { stroke: #f85149 } .limit-text { fill: #f85149 }
  }
"""


@dataclass(frozen=True)
class Figures:
    """Of one entry of PERF.md; the server's share by layout of the text has one of its own."""

    title: str
    ms: dict[str, float]
    server_streaming_ms: float
    server_whole_ms: float

    def first_sound(self) -> list[tuple[str, float, float]]:
        """Rows of the upper half: name, milliseconds of the engine and of the server."""
        ms, streaming, whole = self.ms, self.server_streaming_ms, self.server_whole_ms
        return [
            ("text as it is written, voice known", ms["streaming_again"], streaming),
            ("... first time in a voice", ms["streaming_first"], streaming),
            ("whole text first, voice known", ms["whole_again"], whole),
            ("... first time in a voice", ms["whole_first"], whole),
        ]


def read_figures(text: str) -> Figures:
    """From the newest entry of PERF.md that has them all.  Raises LookupError."""
    streaming = re.search(SERVER.format("text as it comes"), text)
    whole = re.search(SERVER.format("whole text"), text)
    for entry in re.split(r"^## ", text, flags=re.M)[1:]:
        found = {name: re.search(p, entry, re.M) for name, p in PATTERNS.items()}
        ms = {name: float(match[1]) for name, match in found.items() if match}
        if len(ms) == len(PATTERNS) and streaming and whole:
            title = entry.splitlines()[0]
            return Figures(title, ms, float(streaming[1]), float(whole[1]))
    raise LookupError(f"no entry of PERF.md has {', '.join(PATTERNS)} and the server's share")


def bar(y: int, parts: list[tuple[str, float, str]], scale: float) -> list[str]:
    """Bars one after another; a name is written into its bar where it fits."""
    drawn, x = [], float(LEFT)
    for name, ms, css in parts:
        width = ms * scale
        drawn.append(
            f'<rect class="{css}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
        )
        if width > 8 * len(name):
            middle = x + width / 2
            inside = f'class="inside" x="{middle:.1f}" y="{y + 13}"'
            drawn.append(f"<text {inside}>{escape(name)}</text>")
        x += width
    total = sum(ms for _, ms, _ in parts)
    drawn.append(f'<text class="number" x="{x + 6:.1f}" y="{y + 14}">{total:.0f} ms</text>')
    return drawn


def label(y: int, text: str) -> str:
    """The name of a row."""
    return f'<text class="label" x="{LEFT - 10}" y="{y + 14}">{escape(text)}</text>'


def first_sound(figures: Figures, top: int) -> list[str]:
    """The upper half: from the text to the first sound."""
    rows = figures.first_sound()
    scale = (RIGHT - LEFT - 60) / max(engine + server for _, engine, server in rows)
    drawn = [f'<text class="title" x="20" y="{top}">Text to first sound</text>']
    for i, (name, engine, server) in enumerate(rows):
        y = top + 14 + i * ROW
        parts = [("engine", engine, "engine"), ("server", server, "server")]
        drawn += [label(y, name), *bar(y, parts, scale)]
    y = top + 14 + len(rows) * ROW + 12
    drawn.append(
        f'<text class="note" x="{LEFT}" y="{y}">engine: prompt, first frame, its sound; '
        f"the sliver at the end: server, {figures.server_streaming_ms:g} ms "
        f"(whole text: {figures.server_whole_ms:g})</text>"
    )
    return drawn


def one_frame(figures: Figures, top: int) -> list[str]:
    """The lower half: the two threads, against the 80 ms that a frame lasts."""
    ms = figures.ms
    rest = ms["decoder"] - ms["pre-transformer"] - ms["upsampling"] - ms["vocoder"]
    lanes = [
        (
            "generator thread",
            [("talker", ms["talker"], "talker"), ("code predictor", ms["cp"], "cp")],
        ),
        (
            "decoder thread",
            [
                ("pre", ms["pre-transformer"] + ms["upsampling"] + max(0.0, rest), "pre"),
                ("vocoder", ms["vocoder"], "vocoder"),
            ],
        ),
    ]
    longest = max(sum(value for _, value, _ in parts) for _, parts in lanes)
    scale = (RIGHT - LEFT - 60) / max(longest, FRAME_MS)
    drawn = [f'<text class="title" x="20" y="{top}">One frame (80 ms of speech)</text>']
    for i, (name, parts) in enumerate(lanes):
        y = top + 14 + i * ROW
        drawn += [label(y, name), *bar(y, parts, scale)]
    x = LEFT + FRAME_MS * scale
    bottom = top + 14 + len(lanes) * ROW
    drawn += [
        f'<line class="limit" x1="{x:.1f}" y1="{top + 6}" x2="{x:.1f}" y2="{bottom - 8}"/>',
        f'<text class="limit-text" x="{x + 6:.1f}" y="{top + 4}">real time: 80 ms</text>',
        f'<text class="note" x="{LEFT}" y="{bottom + 12}">both work at the same time, each helps '
        "the other when idle; pre: before the vocoder</text>",
    ]
    return drawn


def draw(figures: Figures) -> str:
    """The picture, as SVG text."""
    upper, lower = 34, 208
    height = lower + 14 + 2 * ROW + 58
    ms = figures.ms
    sums = [engine + server for _, engine, server in figures.first_sound()]
    described = (
        f"First sound {min(sums):.0f} to {max(sums):.0f} ms after the text; "
        f"a frame of 80 ms takes {ms['talker'] + ms['cp']:g} ms of codes "
        f"and {ms['decoder']:g} ms of decoding."
    )
    source = f"0.6B q8_0, two AVX2 cores (Zen 1). PERF.md, {figures.title}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(described)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="panel" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>',
            *first_sound(figures, upper),
            *one_frame(figures, lower),
            f'<text class="note" x="20" y="{height - 16}">{escape(source)}</text>',
            "</svg>\n",
        ]
    )


def main(arguments: list[str]) -> int:
    """0: done, or the picture is as it should be; 1: it is not."""
    picture = draw(read_figures(PERF.read_text("utf-8")))
    if arguments == ["--check"]:
        return int(not PICTURE.exists() or PICTURE.read_text("utf-8") != picture)
    PICTURE.write_text(picture, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
