"""Fills the tables of BOARDS.md from the shapes of the models and from published figures.

    python engine_native/figures/boards.py [--check]

What a frame costs is counted by `kazeia_engine.work`, as `kazeia doctor` does.  `--check` writes
nothing and fails if the page's tables are not those computed here.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from kazeia_engine.gguf_layout import PartTypes
from kazeia_engine.machine import Speed
from kazeia_engine.synth import shape_of
from kazeia_engine.work import FRAMES_PER_SECOND, Work, estimate

PAGE = Path(__file__).parents[1] / "BOARDS.md"
MODELS = ("0.6b", "1.7b")
FORMATS = {  # name -> types of talker, code predictor and decoder
    "q4_0": PartTypes("q4_0", "q4_0", "f16"),
    "q4_0 talker, q8_0": PartTypes("q4_0", "q8_0", "f16"),
    "q8_0": PartTypes("q8_0", "q8_0", "f16"),
    "f16": PartTypes("f16", "f16", "f16"),
}
ISSUES = "https://github.com/geerlingguy/top500-benchmark/issues"
SBC_BENCH = "https://github.com/ThomasKaiser/sbc-bench/blob/master/Results.md"


@dataclass(frozen=True)
class Board:
    """Published figures of a machine.

    gbs: 10^9 bytes a second from memory.  gflops: 10^9 f32 operations a second on all cores, as
    measured; hpl: the same in double precision (High-Performance Linpack).  None: not found.
    """

    name: str
    gbs: float
    gbs_kind: str
    gbs_source: str
    gflops: float | None = None
    hpl: float | None = None
    source: str = ""

    @property
    def f32(self) -> float | None:
        """f32 vectors hold twice as many numbers as double ones."""
        return 2 * self.hpl if self.hpl is not None else self.gflops

    @property
    def arithmetic(self) -> str:
        """A cell of the table."""
        if self.hpl is not None:
            return f"[{self.hpl:.1f}]({self.source}) x 2"
        return "" if self.gflops is None else f"[{self.gflops:g}]({self.source})"


BOARDS = (
    Board(
        "AMD EPYC (Zen 1), 2 cores",
        27.4,
        "read, two threads",
        "PERF.md",
        gflops=76,
        source="PERF.md",
    ),
    Board("Raspberry Pi 4", 2.6, "copy, one core", SBC_BENCH, hpl=11.889, source=f"{ISSUES}/13"),
    Board("Odroid N2+", 4.3, "copy, one core", SBC_BENCH),
    Board(
        "Raspberry Pi 5",
        11.4,
        "read by a language model, four cores (limit of the memory: 17)",
        "http://hellomatik.com/research/hitting-the-memory-wall-30b-moe-raspberry-pi",
        hpl=30.249,
        source=f"{ISSUES}/18",
    ),
    Board(
        "Orange Pi 5 (RK3588S)",
        10.14,
        "copy, one core",
        "https://github.com/ggml-org/whisper.cpp/issues/89",
        hpl=53.333,
        source=f"{ISSUES}/14",
    ),
    Board(
        "Turing RK1 (RK3588)",
        22.0,
        "17 to 22, sequential",
        "https://turingpi.com/?p=721854",
        hpl=59.810,
        source=f"{ISSUES}/22",
    ),
    Board(
        "Graviton2, one core",
        20.9,
        "read, one core",
        "https://learn.arm.com/learning-paths/servers-and-cloud-computing/memory-subsystem/streaming-bandwidth",
    ),
    Board(
        "Graviton2, 64 cores",
        204.8,
        "limit of the memory",
        "https://bateloved.github.io/Analyzing-DataCenter-Workloads/analysis.html",
    ),
    Board(
        "Graviton3, 64 cores",
        307.2,
        "limit of the memory",
        "https://en.wikichip.org/wiki/AWS_Graviton3",
    ),
    Board(
        "Jetson Orin Nano Super",
        102.0,
        "limit of the memory, shared with the GPU; 68 before the Super clocks",
        "https://www.brojogopalsapui.com/ai-foundations/sub_contents/AI_hardware/jetson_orin_nano_light.html",
    ),
    Board(
        "Snapdragon 8 Gen 3 phones",
        76.8,
        "limit of the memory",
        "https://runlocalai.co/hardware/snapdragon-8-gen-3",
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
    """The estimated real-time factor; without a figure of arithmetic what reading alone needs."""
    work = Work.of_shape(shape_of(model), FORMATS[name])
    rtf = estimate(work, speed(board.gbs, board.f32 or float("inf"))).rtf
    return f"{rtf:.1f}" if board.f32 else f"over {rtf:.2f}"


def boards() -> str:
    """Published figures of boards, and what follows."""
    columns = [(m, f) for m in MODELS for f in ("q8_0", "q4_0")]
    heads = " | ".join(f"RTF {m.upper()} {f}" for m, f in columns)
    lines = [
        f"| board | memory, GB/s | f32, GFLOP/s | {heads} |",
        "|---|---|---|" + "---|" * len(columns),
    ]
    for b in BOARDS:
        cells = " | ".join(outlook(b, m, f) for m, f in columns)
        memory = f"[{b.gbs:g}]({b.gbs_source}): {b.gbs_kind}"
        lines.append(f"| {b.name} | {memory} | {b.arithmetic} | {cells} |")
    return "\n".join(lines)


def filled(page: str) -> str:
    """The page with its tables, each between `<!-- NAME -->` and `<!-- /NAME -->`."""
    for name, table in (("needs", needs()), ("boards", boards())):
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
