"""Kazeia's engine: Qwen3-TTS speech synthesis on plain CPU cores.

    from kazeia_engine import Model

    with Model.load("models/qwen3-tts-0.6b") as model:
        result = model.synthesize("Hello.", speaker="vivian")
        for chunk in model.stream("Hello again.", speaker="vivian"):
            play(chunk.pcm)

Audio is float32, 24 kHz, mono.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from kazeia_engine.errors import (
    EngineClosed,
    EngineError,
    InvalidInput,
    KazeiaError,
    ModelError,
    ModelFormatError,
    ModelNotFound,
    UnknownLanguage,
    UnknownSpeaker,
)
from kazeia_engine.processor import require_processor
from kazeia_engine.types import Chunk, Ended, Guard, ModelInfo, ModelKind, Result, TextMode

if TYPE_CHECKING:
    from kazeia_engine.devices import Devices
    from kazeia_engine.model import Model
    from kazeia_engine.tokenizer import Tokenizer

__all__ = [
    "Chunk",
    "Devices",
    "Ended",
    "EngineClosed",
    "EngineError",
    "Guard",
    "InvalidInput",
    "KazeiaError",
    "Model",
    "ModelError",
    "ModelFormatError",
    "ModelInfo",
    "ModelKind",
    "ModelNotFound",
    "Result",
    "TextMode",
    "Tokenizer",
    "UnknownLanguage",
    "UnknownSpeaker",
    "__version__",
]

try:
    __version__ = version("kazeia")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

# ggml's OpenMP threads spin at every barrier by default: with another process on a core a prompt
# then takes many times as long (docs/adr/0005).  Must be set before libgomp is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A library logs nothing by itself; the application decides.
logging.getLogger("kazeia").addHandler(logging.NullHandler())

# These load numpy and native libraries; errors and types must be importable without them.
_LAZY = {
    "Devices": "kazeia_engine.devices",
    "Model": "kazeia_engine.model",
    "Tokenizer": "kazeia_engine.tokenizer",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        require_processor()
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
