"""Fills the tables of docs/performance.md from the shapes of the models and from published figures.

    python engine_native/figures/boards.py [--check]

What a frame costs is counted by `kazeia_engine.tools.work`, as `kazeia doctor` does.  `--check`
writes nothing and fails if the page's tables are not those computed here.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from kazeia_engine.tools.gguf_layout import PartTypes
from kazeia_engine.tools.machine import Speed
from kazeia_engine.tools.synth import shape_of
from kazeia_engine.tools.work import FRAMES_PER_SECOND, Work, estimate

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
MODELS = ("0.6b", "1.7b")
FORMATS = {  # name -> types of talker, code predictor and decoder
    "q4_0, CP too: lossy": PartTypes("q4_0", "q4_0", "f16"),
    "q4_0 talker, q8_0 CP": PartTypes("q4_0", "q8_0", "f16"),
    "q8_0": PartTypes("q8_0", "q8_0", "f16"),
    "f16": PartTypes("f16", "f16", "f16"),
}
SHOWN = ("q8_0", "q4_0 talker, q8_0 CP")  # of boards: what --type gives for q8_0 and q4_0
ISSUES = "https://github.com/geerlingguy/top500-benchmark/issues"
REVIEWS = "https://github.com/geerlingguy/sbc-reviews/issues"
SBC_BENCH = "https://github.com/ThomasKaiser/sbc-bench/blob/master/Results.md"
NOTEBOOKCHECK = "https://www.notebookcheck.net"
ADL_N = "limit: 64 bits at 4.8 GT/s"


@dataclass(frozen=True)
class Memory:
    """10^9 bytes a second from memory, how it was found, and where.

    limit: what the bus could carry at most; no program reaches it.
    """

    gbs: float
    kind: str
    source: str
    limit: bool = False

    @property
    def cell(self) -> str:
        """Of the table."""
        return f"[{self.gbs:g}]({self.source}): {self.kind}"


@dataclass(frozen=True)
class Arithmetic:
    """10^9 f32 operations a second on all cores.

    hpl: High-Performance Linpack in double precision, of which f32 does twice as many.
    peak: cores, clock in GHz and operations a cycle: more than any program reaches.
    """

    source: str
    measured: float | None = None
    hpl: float | None = None
    peak: tuple[int, float, int] | None = None

    @property
    def gflops(self) -> float:
        """In f32."""
        if self.hpl is not None:
            return 2 * self.hpl
        if self.peak is not None:
            return float(math.prod(self.peak))
        if self.measured is None:
            raise ValueError("expected a figure: measured, hpl or peak")
        return self.measured

    @property
    def cell(self) -> str:
        """Of the table."""
        if self.hpl is not None:
            return f"[{self.hpl:.1f}]({self.source}) x 2"
        if self.peak is not None:
            cores, ghz, width = self.peak
            return f"{cores} cores x {ghz:g} GHz x [{width}]({self.source}): peak"
        return f"[{self.gflops:g}]({self.source})"


@dataclass(frozen=True)
class Board:
    """Published figures of a machine; arithmetic None: none was found."""

    name: str
    memory: Memory
    arithmetic: Arithmetic | None = None


BOARDS = (
    Board(
        "AMD EPYC (Zen 1), 2 cores",
        Memory(27.4, "read, two threads", "../engine_native/PERF.md"),
        Arithmetic("../engine_native/PERF.md", measured=76),
    ),
    Board(
        "Raspberry Pi 4",
        Memory(2.6, "copy, one core", SBC_BENCH),
        Arithmetic(f"{ISSUES}/13", hpl=11.889),
    ),
    Board(
        "Raspberry Pi 5",
        Memory(
            11.4,
            "read, four cores (limit: 17)",
            "http://hellomatik.com/research/hitting-the-memory-wall-30b-moe-raspberry-pi",
        ),
        Arithmetic(f"{ISSUES}/18", hpl=30.249),
    ),
    Board(
        "Orange Pi 5 (RK3588S)",
        Memory(10.14, "copy, one core", "https://github.com/ggml-org/whisper.cpp/issues/89"),
        Arithmetic(f"{ISSUES}/14", hpl=53.333),
    ),
    Board(
        "Turing RK1 (RK3588)",
        Memory(22.0, "17 to 22, sequential", "https://turingpi.com/?p=721854"),
        Arithmetic(f"{ISSUES}/22", hpl=59.810),
    ),
    Board(
        "CIX CP8180 (Framework mainboard)",
        Memory(13.9, "copy, one core", f"{REVIEWS}/103"),
        Arithmetic(f"{ISSUES}/94", hpl=56.391),
    ),
    Board(
        "Intel N150 (GMKtec G3 Plus)",
        Memory(6.25, "copy, one core", f"{REVIEWS}/64"),
        Arithmetic(f"{ISSUES}/52", hpl=48.264),
    ),
    Board(
        "Intel N100 (LattePanda Mu, 26 W)",
        Memory(
            38.4,
            ADL_N,
            f"{NOTEBOOKCHECK}/N100-vs-i3-1215U-vs-Celeron-7300_14932_14098_14140.247596.0.html",
            limit=True,
        ),
        Arithmetic(f"{ISSUES}/30", hpl=63.225),
    ),
    Board(
        "Intel Core i3-1315U (Framework 12)",
        Memory(9.2, "copy, one core", f"{REVIEWS}/107"),
        Arithmetic(f"{ISSUES}/97", hpl=64.555),
    ),
    Board(
        "AMD Ryzen AI 5 340 (Framework 13)",
        Memory(20.0, "copy, one core", f"{REVIEWS}/90"),
        Arithmetic(f"{ISSUES}/83", hpl=88.787),
    ),
    Board(
        "AMD Ryzen 7 8845HS mini PCs",
        Memory(
            89.6,
            "limit: two DDR5-5600; programs get 80 to 86",
            "https://minipcblogs.com/en/a/ryzen-8845hs-mini-pcs-7b-13b-llms",
            limit=True,
        ),
        Arithmetic("https://wlog.flatlib.jp/2024/01/13/ryzen-zen3-vfpbench/", peak=(8, 3.8, 32)),
    ),
    Board(
        "AMD Ryzen AI Max+ 395 (Framework Desktop)",
        Memory(
            256.0,
            "limit, shared with the GPU",
            "https://mortenoh.github.io/msai-setup/getting-started/hardware-architecture/",
            limit=True,
        ),
        Arithmetic(f"{ISSUES}/66", hpl=307.84),
    ),
    Board("Odroid N2+", Memory(4.3, "copy, one core", SBC_BENCH)),
    Board(
        "Intel Core i3-N305",
        Memory(
            38.4,
            ADL_N,
            f"{NOTEBOOKCHECK}/i3-N305-vs-Celeron-N4100-vs-Celeron-N4000_14926_9424_9426.247596.0.html",
            limit=True,
        ),
    ),
    Board(
        "Graviton2, one core",
        Memory(
            20.9,
            "read, one core",
            "https://learn.arm.com/learning-paths/servers-and-cloud-computing/memory-subsystem/streaming-bandwidth",
        ),
    ),
    Board(
        "Graviton2, 64 cores",
        Memory(
            204.8,
            "limit",
            "https://bateloved.github.io/Analyzing-DataCenter-Workloads/analysis.html",
            limit=True,
        ),
    ),
    Board(
        "Graviton3, 64 cores",
        Memory(
            307.2,
            "limit",
            "https://en.wikichip.org/wiki/AWS_Graviton3",
            limit=True,
        ),
    ),
    Board(
        "Jetson Orin Nano Super",
        Memory(
            102.0,
            "limit, shared with the GPU; 68 before Super",
            "https://www.brojogopalsapui.com/ai-foundations/sub_contents/AI_hardware/jetson_orin_nano_light.html",
            limit=True,
        ),
    ),
    Board(
        "Snapdragon 8 Gen 3 phones",
        Memory(
            76.8,
            "limit",
            "https://runlocalai.co/hardware/snapdragon-8-gen-3",
            limit=True,
        ),
    ),
)


def speed(gbs: float, gflops: float) -> Speed:
    """A machine that reads and multiplies so fast on all threads."""
    return Speed(
        threads=0,
        kernels="",
        integer_kernels="",
        working_set_mb=0.0,
        read_gbs_1=gbs,
        read_gbs_n=gbs,
        gflops_1=gflops,
        gflops_n=gflops,
        foreign_cores=None,
    )


def needs() -> str:
    """What real time needs, by model and format, each alone: the other costs no time."""
    lines = [
        "| model | weights | MB a frame: talker + CP | GB/s | GFLOP a frame | GFLOP/s |",
        "|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        for name, types in FORMATS.items():
            work = Work.of_shape(shape_of(model), types)
            talker, cp = work.talker.read_bytes, work.cp.read_bytes
            flops = work.talker.flops + work.cp.flops + work.decoder.flops
            lines.append(
                f"| {model.upper()} | {name} | {talker / 1e6:.0f} + {cp / 1e6:.0f} "
                f"| {(talker + cp) * FRAMES_PER_SECOND / 1e9:.1f} "
                f"| {flops / 1e9:.2f} | {flops * FRAMES_PER_SECOND / 1e9:.0f} |"
            )
    return "\n".join(lines)


def outlook(board: Board, model: str, name: str) -> str:
    """The estimated real-time factor; a bound where a figure is more than programs reach."""
    assert board.arithmetic is not None
    work = Work.of_shape(shape_of(model), FORMATS[name])
    rtf = estimate(work, speed(board.memory.gbs, board.arithmetic.gflops)).rtf
    bound = board.memory.limit or board.arithmetic.peak is not None
    return f"above {rtf:.1f}" if bound else f"{rtf:.1f}"


def share(board: Board, model: str, name: str) -> str:
    """How much of real time the reading of the weights takes."""
    work = Work.of_shape(shape_of(model), FORMATS[name])
    seconds = (work.talker.read_bytes + work.cp.read_bytes) * FRAMES_PER_SECOND / 1e9
    percent = f"{seconds / board.memory.gbs:.0%}"
    return f"above {percent}" if board.memory.limit else percent


def boards() -> str:
    """Boards with figures of memory and arithmetic, and what follows."""
    columns = [(model, name) for model in MODELS for name in SHOWN]
    lines = _heads(columns, "RTF", "f32, GFLOP/s")
    for b in BOARDS:
        if b.arithmetic is not None:
            cells = [b.name, b.memory.cell, b.arithmetic.cell]
            cells += [outlook(b, m, f) for m, f in columns]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def unknown() -> str:
    """Boards of which only the memory is known."""
    columns = [(model, "q8_0") for model in MODELS]
    lines = _heads(columns, "reading,")
    for b in BOARDS:
        if b.arithmetic is None:
            cells = [b.name, b.memory.cell, *(share(b, m, f) for m, f in columns)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _heads(columns: list[tuple[str, str]], figure: str, *more: str) -> list[str]:
    """The first lines of a table with a column for each model and format."""
    heads = ["board", "memory, GB/s", *more, *(f"{figure} {m.upper()} {f}" for m, f in columns)]
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]


def filled(page: str) -> str:
    """The page with its tables, each between `<!-- NAME -->` and `<!-- /NAME -->`."""
    for name, table in (("needs", needs()), ("boards", boards()), ("unknown", unknown())):
        page, found = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}",
            page,
            flags=re.S,
        )
        if found != 1:
            raise LookupError(f"{PAGE.name} has {found} places for the table {name!r}, expected 1")
    return page


def main(arguments: list[str]) -> int:
    """0: done, or the tables are as they should be; 1: they are not."""
    page = PAGE.read_text("utf-8")
    if arguments == ["--check"]:
        return int(filled(page) != page)
    PAGE.write_text(filled(page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
