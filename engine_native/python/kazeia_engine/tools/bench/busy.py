"""Processes that do nothing but keep cores busy, to see how a model bears with neighbours."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from kazeia_engine.errors import EngineError, InvalidInput
from kazeia_engine.tools.bench.runs import spoken_text
from kazeia_engine.tools.machine import CpuWatch, most_cores

if TYPE_CHECKING:
    from kazeia_engine.model import Model

__all__ = ["MOST_BUSY", "slowdown", "spinning"]

MOST_BUSY = 256
# Ends with its parent, however that ended.  A core below 0: wherever the system puts it.
_SPIN = """
import os, sys, time
parent, core = int(sys.argv[1]), int(sys.argv[2])
if core >= 0:
    os.sched_setaffinity(0, {core})
sys.stdout.write("spinning\\n")
sys.stdout.flush()
while os.getppid() == parent:
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
"""


@contextmanager
def spinning(n: int) -> Iterator[list[int]]:
    """n processes that spin, each on its own core while there are enough; yields their ids.

    They are gone when the block is left. Raises InvalidInput for an n outside 1..256, EngineError
    when a process cannot be started.
    """
    if not 1 <= n <= MOST_BUSY:
        raise InvalidInput(f"busy is {n}, expected 1..{MOST_BUSY}", param="busy")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else [-1]
    with ExitStack() as stack:
        pids = []
        for i in range(n):
            arguments = [str(os.getpid()), str(cores[-1 - i % len(cores)])]
            process = stack.enter_context(_started(arguments))
            pids.append(process.pid)
        yield pids


@contextmanager
def _started(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SPIN, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            if process.stdout is None or process.stdout.readline() != "spinning\n":
                raise EngineError("a process that should keep a core busy could not be started")
            yield process
        finally:
            process.kill()


def slowdown(model: Model, n: int, *, frames: int, repeat: int) -> dict[str, Any]:
    """How many times as long a run takes beside n spinning processes; alone and beside in turn.

    Returns processes, alone_s, busy_s (medians), slowdown (of the medians), slowdowns (of every
    pair) and foreign_cores (that others kept busy in the worst pair; None where unknown).
    """
    options: dict[str, Any] = {
        "speaker": model.info.first_speaker,
        "seed": 1,
        "max_frames": frames,
        "ignore_eos": True,
    }
    text = spoken_text(model)

    def seconds() -> float:
        start = time.perf_counter()
        model.synthesize(text, **options)
        return time.perf_counter() - start

    seconds()  # warms up
    alone, busy, foreign = [], [], []
    for _ in range(repeat):
        watch = CpuWatch()
        alone.append(seconds())
        with spinning(n):
            busy.append(seconds())
        foreign.append(watch.foreign_cores())  # the spinning ones are our own
    return {
        "processes": n,
        "alone_s": round(statistics.median(alone), 4),
        "busy_s": round(statistics.median(busy), 4),
        "slowdown": round(statistics.median(busy) / statistics.median(alone), 3),
        "slowdowns": [round(b / a, 3) for a, b in zip(alone, busy, strict=True)],
        "foreign_cores": most_cores(foreign),
    }
