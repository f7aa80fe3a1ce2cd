"""The messages of the speech protocol: what a client may send, and what it is told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kazeia_server.audio.formats import FormatName, OutputFormat
from kazeia_server.errors import (
    InvalidRequest,
    ServerError,
    Unavailable,
    error_body,
)
from kazeia_server.requests import SpeechOptions, json_object
from kazeia_server.synthesis.backend import SynthesisStats

__all__ = [
    "MESSAGES",
    "AuthMessage",
    "EmptyMessage",
    "SessionConfig",
    "TextMessage",
    "error_message",
    "parse_message",
    "stats_message",
]

MESSAGES = (
    "session.auth",
    "session.config",
    "input.text",
    "input.flush",
    "input.done",
    "input.cancel",
    "session.close",
    "ping",
)


class SessionConfig(SpeechOptions):
    """session.config: replaces the options of later utterances as a whole."""

    response_format: FormatName | None = Field(default=None, description="pcm")
    sample_rate: Annotated[int, Field(ge=8000, le=48_000)] | None = Field(
        default=None, description="Hz; the voice's own"
    )

    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = Field(
        default=None, description="refused unless it is what the model does"
    )

    @property
    def output(self) -> OutputFormat:
        """The format of the audio frames."""
        return OutputFormat(self.response_format or "pcm", self.sample_rate)


class TextMessage(BaseModel):
    """input.text"""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str


class AuthMessage(BaseModel):
    """session.auth"""

    model_config = ConfigDict(strict=True, extra="forbid")

    key: str


class EmptyMessage(BaseModel):
    """Every message without fields."""

    model_config = ConfigDict(strict=True, extra="forbid")


def parse_message(data: str) -> tuple[str, dict[str, Any]]:
    """The type of a message and its other fields.

    Raises InvalidRequest.
    """
    message = json_object(data)
    kind = message.pop("type", None)
    if not isinstance(kind, str) or kind not in MESSAGES:
        got = "nothing" if kind is None else ascii(kind)[:60]
        raise InvalidRequest(f"type must be one of {', '.join(MESSAGES)}; got {got}", param="type")
    return kind, message


def error_message(error: Exception, index: int | None = None) -> dict[str, Any]:
    """error: what went wrong, for people and for programs; `index`: the utterance it ends."""
    body = error_body(error)["error"]
    message = {
        "type": "error",
        "message": body["message"],
        "error_type": body["type"],
        "code": body["code"],
        "param": error.param if isinstance(error, ServerError) else None,
        "utterance_index": index,
    }
    if isinstance(error, Unavailable):
        message["retry_after_s"] = error.retry_after_s
    return message


def stats_message(index: int, stats: SynthesisStats, total_bytes: int) -> dict[str, Any]:
    """audio.done: the figures of an utterance."""
    return {
        "type": "audio.done",
        "utterance_index": index,
        "sentence_index": 0,
        "ended": stats.ended,
        "ttfb_s": stats.ttfb_s,
        "voice_ttfb_s": stats.voice_ttfb_s,
        "rtf": stats.rtf,
        "n_chunks": stats.n_chunks,
        "audio_s": stats.audio_s,
        "frames": stats.frames,
        "total_bytes": total_bytes,
        "pieces": stats.pieces,
        "retries": stats.retries,
        "stages": stats.stages,
        "warnings": list(stats.warnings),
        "error": False,
    }
