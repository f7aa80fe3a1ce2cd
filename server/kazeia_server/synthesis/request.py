"""One utterance to speak, as the service is asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kazeia_server.audio.formats import PCM, OutputFormat
from kazeia_server.settings import Settings
from kazeia_server.text.pieces import Split
from kazeia_server.voices.backend import VoiceRequest

__all__ = ["SynthesisRequest", "build_request"]


@dataclass(frozen=True, slots=True)
class SynthesisRequest(VoiceRequest):
    """What the voice is asked, and what is done before and behind it.

    The ranges of numbers are those of the doors' fields; `check_request` knows the rest.
    """

    speed: float = 1.0  # 0.25..4, pitch kept
    clean: bool = True  # markup, addresses and symbols made speakable before the voice sees them
    split: Split = "auto"
    output: OutputFormat = PCM  # what the utterance's bytes are


def build_request(
    text: str, given: Mapping[str, Any], settings: Settings, *, output: OutputFormat = PCM
) -> SynthesisRequest:
    """The utterance asked for: the fields `given`, and the settings' defaults for the others."""
    defaults: dict[str, Any] = {
        "temperature": settings.temp,
        "top_k": settings.topk,
        "top_p": settings.topp,
        "repetition_penalty": settings.repp,
        "cp_temperature": settings.cp_temp,
        "cp_top_k": settings.cp_topk,
        "cp_top_p": settings.cp_topp,
        "chunk": settings.stream_chunk,
        "clean": settings.clean_text,
        "split": settings.split,
    }
    return SynthesisRequest(**{**defaults, **given, "text": text, "output": output})
