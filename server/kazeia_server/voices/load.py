"""The voice that the settings ask for: a Qwen3-TTS model, or else the built-in one."""

from __future__ import annotations

from kazeia_server.settings import Settings
from kazeia_server.voices.backend import BackendInfo, SynthesisBackend

__all__ = ["describe_voice", "load_voice"]


def load_voice(settings: Settings) -> SynthesisBackend:
    """Load the voice, which takes as long as it takes.

    Raises VoiceLoadError.
    """
    if settings.model is not None:
        from kazeia_server.voices.engine import load_model

        return load_model(settings)
    from kazeia_server.voices.builtin import BuiltinVoice

    return BuiltinVoice(settings.threads)


def describe_voice(settings: Settings) -> BackendInfo:
    """Facts about the voice that load_voice will load, sooner than it can.

    Raises VoiceLoadError.
    """
    if settings.model is not None:
        from kazeia_server.voices.engine import describe_model

        return describe_model(settings.model)
    from kazeia_server.voices.builtin import describe_builtin

    return describe_builtin()
