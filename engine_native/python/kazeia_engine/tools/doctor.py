"""`kazeia doctor`: what this machine has, and which model could speak in real time on it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kazeia_engine.errors import KazeiaError
from kazeia_engine.tools.gguf_layout import PartTypes
from kazeia_engine.tools.machine import Machine, Speed
from kazeia_engine.tools.synth import shape_of
from kazeia_engine.tools.work import FRAMES_PER_SECOND, Work, estimate

__all__ = ["Finding", "Outlook", "findings", "outlooks"]

_SIZES = ("0.6b", "1.7b")
_TYPES = ("q4_0", "q8_0", "f16")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    value: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Outlook:
    """How fast a model should be here, by `kazeia_engine.tools.work.estimate`."""

    model: str
    formats: str
    gb_per_second: float  # read from memory for a second of speech in a second
    rtf: float

    @property
    def verdict(self) -> str:
        """In words; a real run takes up to twice the estimate."""
        if self.rtf < 0.6:
            return "yes"
        return "perhaps" if self.rtf < 1.0 else "no"


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
        _attempt("devices", _devices),
        _attempt("built-in voice", lambda: f"hibari-tts {version('hibari-tts')}"),
    ]


def outlooks(speed: Speed) -> list[Outlook]:
    """What each model and weight format needs on a machine of this speed.

    The estimate is the sum over talker, code predictor and decoder, each the longer of reading and
    multiplying; see `kazeia_engine.tools.work.estimate`.
    """
    table = []
    for model in _SIZES:
        shape = shape_of(model)
        for type in _TYPES:
            types = PartTypes.resolve(type)
            work = Work.of_shape(shape, types)
            read = (work.talker.read_bytes + work.cp.read_bytes) * FRAMES_PER_SECOND
            formats = type if types.cp == type else f"talker {type}, code predictor {types.cp}"
            table.append(Outlook(model, formats, read / 1e9, estimate(work, speed).rtf))
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

    from kazeia_engine.devices import device_list
    from kazeia_engine.native_log import native_log

    device_list()  # a portable build loads its code for this processor only when it is asked for
    api.llama_log_set(ctypes.cast(native_log().callback, api.llama_log_callback), None)
    parts = api.llama_print_system_info().decode("utf-8", "replace").split("|")
    enabled = [p.split("=")[0].strip() for p in parts if p.strip().endswith("= 1")]
    found = [f"llama-cpp-python {version('llama-cpp-python')}", *_loaded("libggml-cpu")]
    return f"{', '.join(found)}: {', '.join(enabled)}"


def _loaded(name: str) -> list[str]:
    """The files of this process whose names begin so; none where the system does not tell."""
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    files = {line.rpartition("/")[2] for line in maps}
    return sorted(file for file in files if file.startswith(name))


def _devices() -> str:
    from kazeia_engine.devices import device_list

    found = [
        f"{d.name} ({d.description}, {d.memory_free / 1e9:.1f} of {d.memory_total / 1e9:.1f} GB)"
        for d in device_list()
    ]
    return ", ".join(found) or "none but the processor"


def _engine() -> str:
    from kazeia_engine import binding

    library = binding.library()
    return f"ABI {library.kz_abi_version()}, {library._name}"
