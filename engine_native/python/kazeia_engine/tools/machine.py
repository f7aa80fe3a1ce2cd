"""Facts and quick measurements of the machine, for `doctor` and for the record of a benchmark."""

from __future__ import annotations

import contextlib
import ctypes as C
import os
import platform
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kazeia_engine import binding

__all__ = [
    "CpuWatch",
    "Machine",
    "Speed",
    "busy_warning",
    "forget_peak_rss",
    "most_cores",
    "peak_rss_bytes",
    "usable_cores",
]

_FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "amx_int8", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
_NOTICEABLE_CORES = 0.1


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


def forget_peak_rss() -> None:
    """Lets `peak_rss_bytes` count from now on, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss_bytes() -> int:
    """Most memory this process had resident, ever or since `forget_peak_rss`."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        if match := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            return int(match[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class CpuWatch:
    """What other processes take of the processor from its making on."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.perf_counter()

    def foreign_cores(self) -> float | None:
        """Cores that others kept busy meanwhile, stolen ones included; None where unknown."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = busy - self._busy - (_own_seconds() - self._own)
        return max(0.0, others / (time.perf_counter() - self._start))


@dataclass(frozen=True, slots=True)
class Speed:
    """What the engine's own loops reach on this machine at most, on one and on all threads."""

    threads: int
    kernels: str  # the loops chosen for this processor
    integer_kernels: str  # those of integer weights
    working_set_mb: float  # read in one pass, beyond the caches
    read_gbs_1: float  # 10^9 bytes a second from memory
    read_gbs_n: float
    gflops_1: float  # 10^9 f32 operations a second in products
    gflops_n: float
    foreign_cores: float | None  # what other processes took meanwhile

    @classmethod
    def measure(cls, threads: int | None = None, seconds: float = 2.0) -> Speed:
        """Measures for about so many seconds; nothing else should run meanwhile.

        threads: as many as the process may use when None.
        Raises InvalidInput, and EngineError when the engine cannot be loaded.
        """
        params = binding.MeasureParams(C.sizeof(binding.MeasureParams), threads or 0, seconds, 0)
        found = binding.MachineStruct(struct_size=C.sizeof(binding.MachineStruct))
        watch = CpuWatch()
        arguments = (C.byref(params), C.byref(found))
        binding.check(binding.library().kz_measure_machine(*arguments))
        return cls(
            threads=found.n_threads,
            kernels=found.kernels.decode(),
            integer_kernels=found.integer_kernels.decode(),
            working_set_mb=found.working_set / 1e6,
            read_gbs_1=found.read_gbs_1,
            read_gbs_n=found.read_gbs_n,
            gflops_1=found.gemm_gflops_1,
            gflops_n=found.gemm_gflops_n,
            foreign_cores=watch.foreign_cores(),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, rounded to what the measurement can say."""
        return {k: round(v, 2) if isinstance(v, float) else v for k, v in asdict(self).items()}


def most_cores(foreign_cores: Iterable[float | None]) -> float | None:
    """The most of several `CpuWatch.foreign_cores`, for JSON; None: unknown."""
    known = [cores for cores in foreign_cores if cores is not None]
    return round(max(known), 2) if known else None


def busy_warning(foreign_cores: float | None) -> str | None:
    """What to say about figures taken while others used so many cores; None: nothing."""
    if foreign_cores is None or foreign_cores < _NOTICEABLE_CORES:
        return None
    return (
        f"other processes kept {foreign_cores:.1f} cores busy: the figures are not those of a "
        "quiet machine"
    )


def _busy_seconds() -> float | None:
    """CPU seconds all processes of the machine have used, with those stolen by its host."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


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
