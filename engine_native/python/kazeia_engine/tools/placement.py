"""`kazeia doctor --placement` on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["show"]


def show(console: Console, found: dict[str, Any]) -> None:
    """Prints what `Model.placement` found: a table of operations and devices for each graph."""
    for part in found["parts"]:
        weights = part["weights"]
        console.print(
            f"{part['part']} on {part['device']}: {weights['device_bytes'] / 1e6:.1f} MB of "
            f"weights on the device, {weights['host_bytes'] / 1e6:.1f} MB in main memory",
            highlight=False,
        )
        for graph in part["graphs"]:
            console.print(_operations(graph))
            console.print(
                f"  in {graph['splits']} pieces; {graph['copies']} tensors, "
                f"{graph['copied_bytes'] / 1e3:.1f} kB, copied between devices in a run",
                highlight=False,
            )


def _operations(graph: dict[str, Any]) -> Table:
    devices = sorted({node["device"] for node in graph["nodes"]})
    table = Table(f"  {graph['graph']}", *devices, box=None)
    for op in sorted({node["op"] for node in graph["nodes"]}):
        counts = {n["device"]: str(n["count"]) for n in graph["nodes"] if n["op"] == op}
        table.add_row(f"  {op.lower()}", *(counts.get(device, "-") for device in devices))
    return table
