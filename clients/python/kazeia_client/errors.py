"""Errors of the client.

KazeiaError
├── UsageError             the calling program's mistake: an address, a text, a closed client
├── PlaybackError          there is nothing to play with, or it failed
├── ConnectionFailed       nothing answers at the address
├── ConnectionLost         the connection ended before the answer did
├── AnswerTimeout          the server sent nothing for too long
├── UnexpectedAnswer       what answers at the address does not speak this protocol
└── ApiError               the server refused, and said why
    ├── InvalidRequest
    │   ├── UnknownVoice
    │   ├── UnknownLanguage
    │   ├── TextTooLong
    │   └── TextTimeout    the text of an utterance stopped coming
    ├── Unauthorized       a key is needed, or not accepted
    ├── Unavailable        try again later
    │   ├── Busy
    │   ├── Loading
    │   └── ShuttingDown
    └── ServerFailure      the server could not make the speech
        └── VoiceFailed    it has no voice, and will have none
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from kazeia_client.foreign import UNUSABLE, number, optional_text, parsed

__all__ = [
    "AnswerTimeout",
    "ApiError",
    "Busy",
    "ConnectionFailed",
    "ConnectionLost",
    "InvalidRequest",
    "KazeiaError",
    "Loading",
    "PlaybackError",
    "ServerFailure",
    "ShuttingDown",
    "TextTimeout",
    "TextTooLong",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownLanguage",
    "UnknownVoice",
    "UsageError",
    "VoiceFailed",
    "error_of_answer",
    "error_of_message",
]


class KazeiaError(Exception):
    """Base of every error of this package."""


class UsageError(KazeiaError, ValueError):
    """Something that cannot be meant; the message says what was expected."""


class PlaybackError(KazeiaError):
    """Nothing can be played, or no longer."""


class ConnectionFailed(KazeiaError):
    """Nothing answers at the address.

    `transient`: whether that may change by itself, as while a server starts.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class ConnectionLost(KazeiaError):
    """The connection ended before the answer did.

    `begun`: whether a part of the answer had come.
    """

    def __init__(self, message: str, *, begun: bool = False) -> None:
        super().__init__(message)
        self.begun = begun


class AnswerTimeout(KazeiaError):
    """The server sent nothing for too long."""


class UnexpectedAnswer(KazeiaError):
    """What answers at the address does not speak this protocol."""


class ApiError(KazeiaError):
    """The server's own words.

    `status` of HTTP, None on a WebSocket; `code` for programs; `param` the field to blame, if
    one is; `retry_after_s` seconds after which another try may help, None: unknown;
    `should_retry` is False where the server says that trying again is of no use.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        error_type: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool = True,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.error_type = error_type
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry


class InvalidRequest(ApiError):
    """The request cannot be used as it is; the message says what was expected."""


class UnknownVoice(InvalidRequest):
    """No such voice; the message lists those there are."""


class UnknownLanguage(InvalidRequest):
    """No such language; the message lists those there are."""


class TextTooLong(InvalidRequest):
    """The text has more characters than the server takes in one utterance."""


class TextTimeout(InvalidRequest):
    """The text of an utterance stopped coming before its end was declared."""


class Unauthorized(ApiError):
    """A key is needed, or the one given is not accepted."""


class Unavailable(ApiError):
    """The request is fine but cannot be served now."""


class Busy(Unavailable):
    """Every place of the server is taken."""


class Loading(Unavailable):
    """The server is loading its voice."""


class ShuttingDown(Unavailable):
    """The server is going away."""


class ServerFailure(ApiError):
    """The server could not make the speech; its log says more."""


class VoiceFailed(ServerFailure):
    """The server has no voice, and will have none."""


_BY_CODE: dict[str, type[ApiError]] = {
    "unknown_voice": UnknownVoice,
    "unknown_language": UnknownLanguage,
    "text_too_long": TextTooLong,
    "text_timeout": TextTimeout,
    "invalid_request": InvalidRequest,
    "payload_too_large": InvalidRequest,
    "invalid_api_key": Unauthorized,
    "busy": Busy,
    "loading": Loading,
    "shutting_down": ShuttingDown,
    "unavailable": Unavailable,
    "voice_failed": VoiceFailed,
    "engine_error": ServerFailure,
    "internal_error": ServerFailure,
}
_SHOWN_BODY = 200  # characters


def error_of_answer(status: int, headers: Mapping[str, str], body: bytes) -> KazeiaError:
    """The error that an HTTP answer stands for.

    `headers` are looked up in lower case.
    """
    if 300 <= status < 400:
        there = headers.get("location", "another address")
        return UnexpectedAnswer(f"the server redirects to {there}: expected that as its address")
    fields = _error_fields(body)
    retry_after_s = _retry_after(headers.get("retry-after"))
    if fields is None and retry_after_s is None and status not in (401, 403, 429, 502, 503):
        shown = " ".join(body[: 4 * _SHOWN_BODY].decode("utf-8", "replace").split())[:_SHOWN_BODY]
        return UnexpectedAnswer(
            f"expected an answer of a Kazeia server, got status {status}: {shown or 'no text'}"
        )
    fields = fields or {}
    code = optional_text(fields.get("code"))
    return _class_of(code, status)(
        optional_text(fields.get("message")) or f"the server answered with status {status}",
        status=status,
        code=code,
        param=optional_text(fields.get("param")),
        error_type=optional_text(fields.get("type")),
        retry_after_s=retry_after_s,
        should_retry=headers.get("x-should-retry", "").lower() != "false",
    )


def error_of_message(message: Mapping[str, Any]) -> ApiError:
    """The error that an `error` message of the WebSocket stands for."""
    code = optional_text(message.get("code"))
    return _class_of(code, None)(
        optional_text(message.get("message")) or "the server reported an error without words",
        code=code,
        param=optional_text(message.get("param")),
        error_type=optional_text(message.get("error_type")),
        retry_after_s=_seconds(message.get("retry_after_s")),
    )


def _class_of(code: str | None, status: int | None) -> type[ApiError]:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in (401, 403):
        return Unauthorized
    if status in (429, 502, 503):  # 502: a proxy in front of a server that is starting
        return Unavailable
    if status is not None and status >= 500:
        return ServerFailure
    return InvalidRequest if status is not None else ApiError


def _error_fields(body: bytes) -> Mapping[str, Any] | None:
    try:
        answer = parsed(body)
    except UNUSABLE:
        return None
    error = answer.get("error") if isinstance(answer, dict) else None
    return error if isinstance(error, dict) else None


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which may also be a date."""
    if value is None:
        return None
    seconds = _seconds(value)
    if seconds is not None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:  # "-0000": of UTC, but from nobody knows where
            date = date.replace(tzinfo=timezone.utc)
        return max(0.0, (date - datetime.now(timezone.utc)).total_seconds())
    except (*UNUSABLE, IndexError):
        return None


def _seconds(value: object) -> float | None:
    try:
        return number(value)
    except ValueError:
        return None
