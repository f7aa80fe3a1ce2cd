"""Errors of the server and how each one looks to a client.

ServerError
├── InvalidRequest               the client sent something that cannot be used
│   ├── UnknownVoice
│   ├── UnknownLanguage
│   ├── UnknownModel
│   ├── TextTooLong
│   ├── TextTimeout
│   ├── PayloadTooLarge
│   └── UnsupportedMediaType
├── Unauthorized                 a key is needed, or the key is not accepted
├── Unavailable                  try again later
│   ├── Busy                     every slot and every place in the queue is taken
│   ├── NotReady                 the voice is still being loaded
│   └── ShuttingDown
├── EngineFailure                synthesis failed inside the engine
└── VoiceLoadError               the configured voice cannot be loaded at all
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

__all__ = [
    "Busy",
    "EngineFailure",
    "Faced",
    "InvalidRequest",
    "NotReady",
    "PayloadTooLarge",
    "ServerError",
    "ShuttingDown",
    "TextTimeout",
    "TextTooLong",
    "Unauthorized",
    "Unavailable",
    "UnknownLanguage",
    "UnknownModel",
    "UnknownVoice",
    "UnsupportedMediaType",
    "VoiceLoadError",
    "describe_validation",
    "error_body",
    "face_of",
]


class ServerError(Exception):
    """Base of every error this package raises on purpose; the message is shown to the client."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param  # name of the offending field, if one is to blame


class InvalidRequest(ServerError, ValueError):
    """The request cannot be used as it is; the message says what was expected."""


class UnknownVoice(InvalidRequest):
    """No such voice; the message lists those there are."""


class UnknownLanguage(InvalidRequest):
    """No such language; the message lists those there are."""


class UnknownModel(InvalidRequest):
    """No such model; the message lists the names there are."""


class TextTooLong(InvalidRequest):
    """The text has more characters than the server accepts."""


class TextTimeout(InvalidRequest):
    """The text of an utterance stopped coming before its end was declared."""


class PayloadTooLarge(InvalidRequest):
    """The body or message has more bytes than the server reads."""


class UnsupportedMediaType(InvalidRequest):
    """The body is not declared as JSON."""


class Unauthorized(ServerError):
    """An API key is needed, or the one given is not accepted."""

    @classmethod
    def because(cls, *, given: bool, how: str) -> Unauthorized:
        """`given`: a key came, and is not accepted; else `how` tells people where to put one."""
        if given:
            return cls("the API key that was sent is not accepted")
        return cls(f"an API key is required: {how}")


class Unavailable(ServerError):
    """The request is fine but cannot be served now.

    `retry_after_s` is a hint in seconds.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Busy(Unavailable):
    """Every slot and every place in the waiting line is taken."""


class NotReady(Unavailable):
    """The voice is still being loaded."""


class ShuttingDown(Unavailable):
    """The server is going away."""


class EngineFailure(ServerError):
    """Synthesis failed; not the client's fault."""


class VoiceLoadError(ServerError):
    """The configured model or voice cannot be loaded."""


@dataclass(frozen=True, slots=True)
class Faced:
    """What a client sees of an error class."""

    status: int  # HTTP
    type: str
    code: str


# The most specific class of an error's MRO that has a row decides.
_FACES: dict[type[Exception], Faced] = {
    UnknownVoice: Faced(400, "invalid_request_error", "unknown_voice"),
    UnknownLanguage: Faced(400, "invalid_request_error", "unknown_language"),
    UnknownModel: Faced(404, "invalid_request_error", "model_not_found"),
    TextTooLong: Faced(400, "invalid_request_error", "text_too_long"),
    TextTimeout: Faced(408, "invalid_request_error", "text_timeout"),
    PayloadTooLarge: Faced(413, "invalid_request_error", "payload_too_large"),
    UnsupportedMediaType: Faced(415, "invalid_request_error", "unsupported_media_type"),
    InvalidRequest: Faced(400, "invalid_request_error", "invalid_request"),
    Unauthorized: Faced(401, "authentication_error", "invalid_api_key"),
    Busy: Faced(503, "overloaded_error", "busy"),
    NotReady: Faced(503, "unavailable_error", "loading"),
    ShuttingDown: Faced(503, "unavailable_error", "shutting_down"),
    Unavailable: Faced(503, "unavailable_error", "unavailable"),
    VoiceLoadError: Faced(503, "unavailable_error", "voice_failed"),
    EngineFailure: Faced(500, "engine_error", "engine_error"),
    Exception: Faced(500, "server_error", "internal_error"),
}


def face_of(error: Exception) -> Faced:
    """Status, type and code under which clients see `error`."""
    return next(_FACES[cls] for cls in type(error).__mro__ if cls in _FACES)


def error_body(error: Exception) -> dict[str, Any]:
    """The `{"error": {...}}` body of an error; unplanned ones keep their details to the log."""
    face = face_of(error)
    planned = isinstance(error, ServerError)
    return {
        "error": {
            "message": str(error) if planned else "internal error; see the server's log",
            "type": face.type,
            "param": error.param if isinstance(error, ServerError) else None,
            "code": face.code,
        }
    }


def describe_validation(error: ValidationError, *, what: str, known: list[str]) -> InvalidRequest:
    """Turn a pydantic error into one sentence.

    `what` names the thing that was read ("the body", "session.config"), `known` its fields.
    """
    unknown: list[str] = []
    faults: dict[str, list[str]] = {}  # by field; a field of several types has a fault for each
    for item in error.errors(include_url=False, include_context=False)[:12]:
        where = _shorten(str(item["loc"][0])) if item["loc"] else ""
        if item["type"] == "extra_forbidden":
            unknown.append(where)
        elif item["type"] == "json_invalid":
            reason = item["msg"].removeprefix("Invalid JSON: ")
            faults[where] = [f"{what} is not valid JSON: {reason}"]
        elif not where:
            faults[where] = [f"{what} must be a JSON object"]
        elif item["type"] == "missing":
            faults[where] = [f"{what} lacks the field {where!r}"]
        else:
            got = "" if faults.get(where) else f"{where} is {_shorten(ascii(item['input']))}: "
            faults.setdefault(where, []).append(got + _lower_first(item["msg"]))
    parts = [", or ".join(messages) for messages in faults.values()]
    if unknown:
        names = ", ".join(ascii(name) for name in unknown)
        parts.append(f"{what} has no field {names}; it knows {', '.join(known)}")
    param = next((name for name in (*faults, *unknown) if name), None)
    return InvalidRequest("; ".join(parts), param=param)


def _lower_first(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
