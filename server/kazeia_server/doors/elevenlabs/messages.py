"""Messages of the ElevenLabs text-to-speech WebSockets.

One that is malformed, or says nothing, is answered by an error and passed over.  An error after
which the connection is closed holds the code of the close frame as `code`; no other does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kazeia_server.doors.fields import Speed, validated
from kazeia_server.errors import (
    InvalidRequest,
    ShuttingDown,
    Unavailable,
    error_body,
    face_of,
)

__all__ = [
    "GOING_AWAY",
    "POLICY_VIOLATION",
    "Message",
    "Refused",
    "close_code",
    "error_message",
    "keys_of",
    "parse_message",
    "speed_of",
]

# Close codes of RFC 6455 and its registry.
POLICY_VIOLATION = 1008
_INTERNAL_ERROR = 1011
GOING_AWAY = 1012
_TRY_AGAIN_LATER = 1013
_MAX_ID_CHARS = 256


class Message(BaseModel):
    """What a client may send; fields the server has no use for are passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    text: str | None = None
    context_id: str | None = Field(default=None, max_length=_MAX_ID_CHARS)
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: dict[str, Any] | None = None


_MEANINGFUL = ("text", "flush", "close_context", "close_socket", "voice_settings")
_KEY_FIELDS = ("xi_api_key", "xi-api-key", "authorization")


class _VoiceSettings(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    speed: Speed | None = None


class Refused(Exception):
    """The connection ends here, after `message` and with `code`."""

    def __init__(self, message: dict[str, Any], code: int) -> None:
        super().__init__(message["message"])
        self.message = message
        self.code = code


def parse_message(fields: dict[str, Any]) -> Message:
    """A message of these fields.

    Raises InvalidRequest naming the field that is wrong, or if none says anything.
    """
    message = validated(Message, fields, what="the message")
    said = any(getattr(message, name) is not None for name in _MEANINGFUL)
    if not said and not any(keys_of(fields)):
        raise InvalidRequest(
            f"the message says nothing: expected at least one of {', '.join(_MEANINGFUL)}",
            param="text",
        )
    return message


def speed_of(settings: dict[str, Any]) -> float:
    """The speed that voice_settings ask for, 0.25 to 4; the others mean nothing to our voices.

    Raises InvalidRequest.
    """
    speed = validated(_VoiceSettings, settings, what="voice_settings").speed
    return 1.0 if speed is None else speed


def keys_of(fields: dict[str, Any]) -> Iterator[str]:
    """The keys a message holds, in any of the places ElevenLabs takes them from."""
    for name in _KEY_FIELDS:
        if isinstance(value := fields.get(name), str) and (
            key := value.removeprefix("Bearer ").strip()
        ):
            yield key


def error_message(error: Exception) -> dict[str, Any]:
    """An error as clients see it, as long as it does not cost the connection."""
    return {"message": error_body(error)["error"]["message"], "error": face_of(error).code}


def close_code(error: Exception) -> int:
    """The code of the close frame, if `error` costs the connection."""
    if isinstance(error, InvalidRequest):
        return POLICY_VIOLATION
    if isinstance(error, ShuttingDown):
        return GOING_AWAY
    return _TRY_AGAIN_LATER if isinstance(error, Unavailable) else _INTERNAL_ERROR
