"""What operators learn of an utterance once it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kazeia_server.voices.backend import Ended

__all__ = ["Outcome", "UtteranceReport"]

Outcome = Literal["ok", "cancelled", "error", "refused"]


@dataclass(frozen=True, slots=True)
class UtteranceReport:
    """Figures of one utterance; no text.  Times in seconds."""

    door: str  # which protocol asked for it: "synthesize", "websocket", "openai", ...
    outcome: Outcome  # refused: before it got a slot
    ended: Ended | None  # None: synthesis did not come to an end
    error_code: str | None
    characters: int
    voice: str | None
    queue_s: float  # waiting for a slot
    wall_s: float  # from the slot to the end
    ttfb_s: float | None  # from the first text to the first audio
    rtf: float | None
    audio_s: float
    underruns: int = 0  # times a listener at real time had nothing to play
    underrun_s: float = 0.0
    retries: int = 0
    pieces: int = 0
    stages: dict[str, float] = field(default_factory=dict)
