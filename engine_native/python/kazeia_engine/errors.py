"""Exceptions of the engine.

KazeiaError
├── InvalidInput (also ValueError)   a parameter, text or array the caller gave
│   ├── UnknownSpeaker
│   └── UnknownLanguage
├── ModelError                       model files
│   ├── ModelNotFound (also FileNotFoundError)
│   └── ModelFormatError             names the tensor or key that is wrong
├── EngineClosed                     the model was closed
└── EngineError                      computation or memory failed inside the engine
"""

from __future__ import annotations

__all__ = [
    "EngineClosed",
    "EngineError",
    "InvalidInput",
    "KazeiaError",
    "ModelError",
    "ModelFormatError",
    "ModelNotFound",
    "UnknownLanguage",
    "UnknownSpeaker",
]


class KazeiaError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInput(KazeiaError, ValueError):
    """The caller's input cannot be used; the message says what was expected."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param  # the parameter's name, for error bodies


class UnknownSpeaker(InvalidInput):
    """The model has no speaker of that name; the message lists those it has."""


class UnknownLanguage(InvalidInput):
    """The model has no tag for that language; the message lists those it has."""


class ModelError(KazeiaError):
    """A model file cannot be used."""


class ModelNotFound(ModelError, FileNotFoundError):
    """A model path or one file of the pair does not exist."""


class ModelFormatError(ModelError):
    """A file is not a Qwen3-TTS model, is damaged, or lacks a tensor or key."""


class EngineClosed(KazeiaError):
    """The model was closed while, or before, it was used."""


class EngineError(KazeiaError):
    """Computation or memory failed inside the engine."""
