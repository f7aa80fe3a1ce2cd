"""Whether numpy runs on this processor: on one it was not built for it ends the process."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

__all__ = ["CPUINFO", "missing_instructions", "require_processor"]

CPUINFO = Path("/proc/cpuinfo")
# Of x86-64-v2, as Linux names them and as everybody else does.
_NEEDED = {
    "cx16": "CMPXCHG16B",
    "lahf_lm": "LAHF",
    "popcnt": "POPCNT",
    "pni": "SSE3",
    "ssse3": "SSSE3",
    "sse4_1": "SSE4.1",
    "sse4_2": "SSE4.2",
}
_SINCE = (2, 4)  # older numpy takes any x86-64 with SSE3


def missing_instructions(cpuinfo: Path) -> list[str]:
    """What x86-64-v2 has and the processor lacks; empty where Linux lists no flags of x86."""
    try:
        with cpuinfo.open() as lines:
            flags = next((line for line in lines if line.startswith("flags")), None)
    except OSError:
        return []
    if flags is None:
        return []
    present = flags.partition(":")[2].split()
    return [name for flag, name in _NEEDED.items() if flag not in present]


def require_processor() -> None:
    """To be called before the first import of numpy.

    Raises ImportError with the instructions that the processor lacks.
    """
    missing = missing_instructions(CPUINFO)
    if missing and tuple(map(int, version("numpy").split(".")[:2])) >= _SINCE:
        raise ImportError(
            f"this processor has no {', '.join(missing)}: numpy {version('numpy')} needs "
            "x86-64-v2 (a virtual machine needs the processor type host or x86-64-v2-AES)"
        )
