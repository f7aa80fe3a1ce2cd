"""The figures of a benchmark on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from rich.table import Table

from kazeia_engine.tools.machine import busy_warning, most_cores
from kazeia_engine.tools.terminal import bar

__all__ = ["progress", "show"]


@contextmanager
def progress(
    console: Console, note: Callable[[str], None]
) -> Iterator[tuple[Callable[[str], None], Callable[[str, int, int], None]]]:
    """How to tell a line, and a step (what, done, all): a bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield note, lambda _what, _done, _all: None
        return
    columns = (MofNCompleteColumn(), TimeElapsedColumn())
    with bar(console, *columns, first="the machine") as told:
        yield told


def show(console: Console, figures: dict[str, Any]) -> None:
    """Prints all of it."""
    machine, speed = figures["machine"], figures["machine"]["speed"]
    console.print(f"{figures['model']} on {machine['cpu']}, {machine['cores']} cores")
    console.print(_machine(speed))
    console.print(_policies(figures))
    console.print(_stages(figures["stages"], speed["threads"]))
    console.print(_first_audio(figures["first_audio"]))
    for line in _sentences(figures):
        console.print(line, highlight=False)
    if figures["busy"] is not None:
        console.print(_busy(figures["busy"]), highlight=False)
    if "ratios" in (figures["compare"] or {}):
        console.print(_comparison(figures["compare"]))
    alone = most_cores((speed["foreign_cores"], figures["foreign_cores"]))
    ratios = most_cores((figures[k] or {}).get("foreign_cores") for k in ("busy", "compare"))
    for mark, cores in (("warning:", alone), ("*", ratios)):
        if (warning := busy_warning(cores)) is not None:
            console.print(f"{mark} {warning}")


def _machine(speed: dict[str, Any]) -> Table:
    table = Table("machine", "1 thread", f"{speed['threads']} threads", box=None)
    table.add_row("memory read, GB/s", f"{speed['read_gbs_1']:.1f}", f"{speed['read_gbs_n']:.1f}")
    table.add_row(
        f"f32 products ({speed['kernels']}), GFLOP/s",
        f"{speed['gflops_1']:.1f}",
        f"{speed['gflops_n']:.1f}",
    )
    return table


def _policies(figures: dict[str, Any]) -> Table:
    table = Table("chunk", "rtf", "first audio ms", "chunks", "total s", "codes", box=None)
    for p in figures["policies"].values():
        table.add_row(
            str(p["chunk"]),
            f"{p['rtf']:.3f}",
            f"{p['ttfb_ms']:.0f}",
            str(p["n_chunks"]),
            f"{p['wall_s']:.2f}",
            p["fingerprint"],
        )
    return table


def _stages(rows: list[dict[str, Any]], threads: int) -> Table:
    share = f"of 1 / {threads} threads"
    table = Table(
        "stage", "ms a frame", "MB read", "GB/s", share, "GMAC", "GFLOP/s", share, box=None
    )
    for row in rows:
        read, products = row.get("gbs"), row.get("gflops")
        table.add_row(
            row["stage"],
            f"{row['ms']:.2f}",
            f"{row['read_mb']:.0f}" if read else "",
            f"{read['rate']:.1f}" if read else "",
            _percents(read),
            f"{row['gmac']:.2f}" if products else "",
            f"{products['rate']:.1f}" if products else "",
            _percents(products),
        )
    return table


def _percents(shares: dict[str, float] | None) -> str:
    return "" if shares is None else f"{shares['of_1']:.0%} / {shares['of_n']:.0%}"


def _first_audio(layouts: dict[str, Any]) -> Table:
    table = Table("first audio, ms", "min", "median", "p90", "same voice again", "p90", box=None)
    for name, of in layouts.items():
        if of is None:
            table.add_row(name, "no voice left to try")
            continue
        first, again = of["first"], of["cached"]
        values = (first["min"], first["median"], first["p90"], again["median"], again["p90"])
        table.add_row(name, *(f"{v:.0f}" for v in values))
    return table


def _sentences(figures: dict[str, Any]) -> list[str]:
    expected, made = figures["estimate"], figures["generator"]
    generator = f"generator {made['ms']:.1f} ms a frame"
    if made["overhead"] is not None:
        generator += f", {made['overhead']:.1%} above its {made['passes_ms']:.1f} ms of products"
    return [
        f"chunk 1 takes {figures['chunk1_over_chunk0']:.2f} times as long as chunk 0; {generator}",
        f"peak memory {figures['rss_mb']:.0f} MB, model {figures['model_mb']:.0f} MB, loaded in "
        f"{figures['load_s']:.2f} s",
        f"rtf {figures['rtf']:.3f}, estimated {expected['rtf']:.3f} from the machine's figures",
        figures["verdict"],
    ]


def _mark(measured: dict[str, Any]) -> str:
    """Of a ratio that was measured while others kept cores busy."""
    return "" if busy_warning(measured["foreign_cores"]) is None else "*"


def _busy(busy: dict[str, Any]) -> str:
    least, most = min(busy["slowdowns"]), max(busy["slowdowns"])
    return (
        f"beside {busy['processes']} busy processes {busy['slowdown']:.2f}{_mark(busy)} times as "
        f"long ({least:.2f} to {most:.2f})"
    )


def _comparison(compared: dict[str, Any]) -> Table:
    table = Table(
        f"{compared['threads']} threads, {compared['frames']} frames",
        "kazeia",
        "llama.cpp" if compared["repacked"] else "llama.cpp, weights as in the file",
        "ratio",
        "varied",
        box=None,
    )
    names = (
        ("rtf", "rtf"),
        ("first_audio_s", "first audio, s"),
        ("peak_rss_mb", "peak memory, MB"),
        ("load_s", "loading, s"),
    )
    for key, name in names:
        ours, theirs = (compared["medians"][engine][key] for engine in ("kazeia", "llama.cpp"))
        ratio = compared["ratios"][key]
        table.add_row(
            name,
            f"{ours:.3f}",
            f"{theirs:.3f}",
            f"{ratio['median']:.2f}{_mark(compared)}",
            f"{ratio['min']:.2f} to {ratio['max']:.2f}",
        )
    return table
