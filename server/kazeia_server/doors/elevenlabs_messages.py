"""Messages of the ElevenLabs text-to-speech WebSockets, and what their protocols may do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kazeia_server.errors import (
    InvalidRequest,
    ShuttingDown,
    Unauthorized,
    Unavailable,
    error_body,
    face_of,
)
from kazeia_server.requests import validated

__all__ = [
    "GOING_AWAY",
    "POLICY_VIOLATION",
    "Action",
    "Begin",
    "Close",
    "Drop",
    "End",
    "Flush",
    "Message",
    "Push",
    "Refused",
    "SendMessage",
    "error_message",
    "keys_of",
    "speed_of",
]

# Close codes of RFC 6455 and its registry.
POLICY_VIOLATION = 1008
_INTERNAL_ERROR = 1011
GOING_AWAY = 1012
_TRY_AGAIN_LATER = 1013
_MAX_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send this object as a JSON text frame."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a live utterance at `speed`, once the utterance `after` has ended (None: now)."""

    index: int
    speed: float
    after: int | None


@dataclass(frozen=True, slots=True)
class Push:
    """Append text to an utterance."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Flush:
    """Speak all text of an utterance so far; what follows begins a new piece."""

    index: int


@dataclass(frozen=True, slots=True)
class End:
    """The text of an utterance is complete."""

    index: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Cancel an utterance; events of it that still come in are ignored."""

    index: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the WebSocket; whatever is still being spoken is cancelled with it."""

    code: int
    reason: str


Action = SendMessage | Begin | Push | Flush | End | Drop | Close


class Message(BaseModel):
    """What a client may send; fields the server has no use for are passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    text: str | None = None
    context_id: str | None = Field(default=None, max_length=_MAX_ID_CHARS)
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: dict[str, Any] | None = None


class _VoiceSettings(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    speed: float | None = Field(default=None, ge=0.25, le=4.0)


class Refused(Exception):
    """The connection ends here, after `message`."""

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__(message["message"])
        self.message = message
        self.code: int = message["code"]


def speed_of(settings: dict[str, Any]) -> float:
    """The speed that voice_settings ask for, 0.25 to 4; the others mean nothing to our voices.

    Raises InvalidRequest.
    """
    speed = validated(_VoiceSettings, settings, what="voice_settings").speed
    return 1.0 if speed is None else speed


def keys_of(fields: dict[str, Any]) -> Iterator[str]:
    """The keys a message holds, in any of the places ElevenLabs takes them from."""
    for name in ("xi_api_key", "xi-api-key", "authorization"):
        if isinstance(value := fields.get(name), str) and (
            key := value.removeprefix("Bearer ").strip()
        ):
            yield key


def error_message(error: Exception) -> dict[str, Any]:
    """An error as clients see it; `code` is that of the close frame, if the error closes."""
    if isinstance(error, (InvalidRequest, Unauthorized)):
        code = POLICY_VIOLATION
    elif isinstance(error, ShuttingDown):
        code = GOING_AWAY
    else:
        code = _TRY_AGAIN_LATER if isinstance(error, Unavailable) else _INTERNAL_ERROR
    return {
        "message": error_body(error)["error"]["message"],
        "error": face_of(error).code,
        "code": code,
    }
