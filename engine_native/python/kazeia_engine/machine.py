"""Facts and quick measurements of the machine, for `doctor` and for the record of a benchmark."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Machine", "bandwidth", "gflops", "peak_rss_bytes", "usable_cores"]

_FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "amx_int8", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
_MEASURE_S = 0.3


@dataclass(frozen=True, slots=True)
class Machine:
    """What a figure was measured on."""

    cpu: str
    architecture: str
    cores: int  # that this process may run on
    memory_gb: float  # physical
    features: tuple[str, ...]  # vector instructions that matter here
    system: str
    python: str

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        info = _cpuinfo()
        return cls(
            cpu=info.get("model name") or info.get("Model") or platform.processor() or "unknown",
            architecture=platform.machine(),
            cores=usable_cores(),
            memory_gb=round(_physical_memory() / 1e9, 1),
            features=_features(info),
            system=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "features": list(self.features)}


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_rss_bytes() -> int:
    """Most memory this process ever had resident."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        if match := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            return int(match[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def bandwidth(threads: int | None = None) -> float:
    """Bytes a second read and written by copying, all threads together."""
    threads = threads or usable_cores()
    words = 1 << 23  # 64 MB a thread and side: beyond most last-level caches
    pairs = [(np.ones(words), np.empty(words)) for _ in range(threads)]

    def copy(pair: tuple[Any, Any]) -> int:
        n, end = 0, time.perf_counter() + _MEASURE_S
        while time.perf_counter() < end:
            np.copyto(pair[1], pair[0])
            n += 1
        return n

    for source, target in pairs:
        np.copyto(target, source)  # pages in
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        copies = sum(pool.map(copy, pairs))
        seconds = time.perf_counter() - start
    return copies * words * 8 * 2 / seconds


def gflops() -> float:
    """Billion f32 operations a second of numpy's matrix product, with its own threads."""
    n = 512
    a, b, out = (np.ones((n, n), np.float32) for _ in range(3))
    np.matmul(a, b, out=out)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < _MEASURE_S:
        np.matmul(a, b, out=out)
        done += 1
    return done * 2 * n**3 / (time.perf_counter() - start) / 1e9


def _cpuinfo() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def _features(info: dict[str, str]) -> tuple[str, ...]:
    present = set((info.get("flags") or info.get("Features") or "").split())
    return tuple(f for f in _FEATURES if f in present)


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0
