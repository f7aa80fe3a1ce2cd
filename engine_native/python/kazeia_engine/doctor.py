"""`kazeia doctor`: what this machine has, and which model could speak in real time on it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from kazeia_engine.errors import KazeiaError
from kazeia_engine.machine import Machine, bandwidth, gflops

__all__ = ["Finding", "Outlook", "findings", "outlooks"]

_FRAMES_PER_SECOND = 12.5
# Weights read for one frame: talker and its head once, the code predictor's body in 15 passes and
# its heads once.
_TALKER = {"0.6b": 443e6, "1.7b": 1416e6}
_CP = 15 * 78.6e6 + 31.5e6
_DECODER_GMAC = 31.0  # for a second of audio
_BYTES = {"q4_k": 4.5 / 8, "q8_0": 8.5 / 8, "f16": 2.0}
_LAYOUTS = (("q4_k", "q8_0"), ("q8_0", "q8_0"), ("f16", "f16"))  # talker, code predictor


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    value: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Outlook:
    """The best real-time factor a model can have here: memory and arithmetic at full speed."""

    model: str
    formats: str
    gb_per_second: float  # read from memory for a second of audio at real time
    best_rtf: float

    @property
    def verdict(self) -> str:
        """In words; a real run reaches a third to three quarters of the best."""
        if self.best_rtf < 0.6:
            return "yes"
        return "perhaps" if self.best_rtf < 1.0 else "no"


def findings() -> list[Finding]:
    """The machine, and whether the parts of the installation can be used."""
    here = Machine.here()
    return [
        Finding("cpu", f"{here.cpu} ({here.architecture})"),
        Finding("cores", f"{here.cores} usable"),
        Finding("memory", f"{here.memory_gb} GB"),
        Finding("vector instructions", " ".join(here.features) or "none known"),
        Finding("system", f"{here.system}, Python {here.python}"),
        _attempt("ggml", _ggml),
        _attempt("engine library", _engine),
        _attempt("built-in voice", lambda: f"hibari-tts {version('hibari-tts')}"),
    ]


def outlooks(*, bytes_per_second: float | None = None, flops: float | None = None) -> list[Outlook]:
    """What each model and weight format would need here.

    bytes_per_second, flops (in billions a second): measured when None, in about a second.
    """
    rate = bandwidth() if bytes_per_second is None else bytes_per_second
    gmac_per_second = (gflops() if flops is None else flops) / 2
    table = []
    for model, talker_weights in _TALKER.items():
        for talker, cp in _LAYOUTS:
            read = talker_weights * _BYTES[talker] + _CP * _BYTES[cp]
            needed = read * _FRAMES_PER_SECOND
            formats = talker if talker == cp else f"talker {talker}, code predictor {cp}"
            # Every weight read is a multiplication too.
            arithmetic = (talker_weights + _CP) * _FRAMES_PER_SECOND / 1e9 + _DECODER_GMAC
            best = max(needed / rate, arithmetic / gmac_per_second)
            table.append(Outlook(model, formats, needed / 1e9, best))
    return table


def _attempt(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, look())
    except PackageNotFoundError as err:
        return Finding(what, f"the package {err.name} is not installed", ok=False)
    except (KazeiaError, OSError, ImportError) as err:
        return Finding(what, " ".join(str(err).split()), ok=False)


def _ggml() -> str:
    from llama_cpp import llama_cpp as api

    from kazeia_engine.native_log import native_log

    api.llama_log_set(ctypes.cast(native_log().callback, api.llama_log_callback), None)
    parts = api.llama_print_system_info().decode("utf-8", "replace").split("|")
    enabled = [p.split("=")[0].strip() for p in parts if p.strip().endswith("= 1")]
    return f"llama-cpp-python {version('llama-cpp-python')}: {', '.join(enabled)}"


def _engine() -> str:
    from kazeia_engine import binding

    library = binding.library()
    return f"ABI {library.kz_abi_version()}, {library._name}"
