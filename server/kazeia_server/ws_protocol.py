"""The speech protocol of the WebSocket, without I/O: messages and events in, actions out.

`server/PROTOCOL.md` specifies it.  The owner of a Protocol feeds it what arrives from the client
(`receive_text`, `receive_bytes`) and from synthesis (`chunk`, `finished`, `failed`), and carries
out the actions each call returns, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from kazeia_server.backend import BackendInfo, SynthesisStats
from kazeia_server.errors import (
    Busy,
    InvalidRequest,
    PayloadTooLarge,
    ServerError,
    TextTooLong,
    Unavailable,
    describe_validation,
    error_body,
)
from kazeia_server.requests import SpeechOptions
from kazeia_server.text import has_content

__all__ = [
    "Action",
    "Close",
    "Job",
    "Protocol",
    "SendAudio",
    "SendMessage",
    "SessionConfig",
    "Speak",
    "Stop",
    "stats_message",
]

_MAX_WAITING = 16
_MESSAGES = ("session.config", "input.text", "input.done", "input.cancel", "session.close")


@dataclass(frozen=True, slots=True)
class Job:
    """One utterance as the client asked for it."""

    index: int
    text: str
    options: SpeechOptions


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send this object as a JSON text frame."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SendAudio:
    """Send these bytes as a binary frame."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Speak:
    """Begin synthesis of a job; the previous one has ended or been stopped."""

    job: Job


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the synthesis of a job; events of it that still come in are ignored."""

    index: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the WebSocket."""

    code: int
    reason: str


Action = SendMessage | SendAudio | Speak | Stop | Close


class SessionConfig(SpeechOptions):
    """session.config: replaces the options of later utterances as a whole."""

    ALIASES: ClassVar[dict[str, str]] = {"instructions": "instruct"}

    response_format: Literal["pcm"] | None = Field(default=None, description="only pcm")
    sample_rate: int | None = Field(default=None, description="only the voice's own rate")


class _InputText(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    text: str


class _Empty(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Protocol:
    """One session.

    `check` raises InvalidRequest for options the voice cannot follow (unknown names).
    """

    def __init__(
        self,
        *,
        max_text_chars: int,
        max_message_bytes: int,
        check: Callable[[SessionConfig], None] = lambda config: None,
    ) -> None:
        self._max_text_chars = max_text_chars
        self._max_message_bytes = max_message_bytes
        self._check = check
        self._options = SpeechOptions()
        self._pieces: list[str] = []
        self._n_chars = 0
        self._overflowed = False
        self._next_index = 0
        self._current: Job | None = None
        self._started = False  # audio.start of the current job has been sent
        self._waiting: deque[Job] = deque()
        self._ending = False  # session.close has been received
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether an utterance is being spoken."""
        return self._current is not None

    def is_current(self, index: int) -> bool:
        """Whether job `index` is being spoken and has not been cancelled."""
        return self._current is not None and self._current.index == index and not self._closed

    # What arrives from the client.

    def receive_text(self, data: str) -> list[Action]:
        """A text frame."""
        if self._closed:
            return []
        try:
            if len(data) > self._max_message_bytes or len(data.encode()) > self._max_message_bytes:
                raise PayloadTooLarge(
                    f"a message may have {self._max_message_bytes} bytes; send long text in "
                    "several input.text messages"
                )
            return self._handle(*_parse(data))
        except ServerError as error:
            return [SendMessage(_error_message(error))]

    def receive_bytes(self, size: int) -> list[Action]:
        """A binary frame of `size` bytes; the protocol has none from the client."""
        if self._closed:
            return []
        error = InvalidRequest(f"expected a JSON text frame, got a binary frame of {size} bytes")
        return [SendMessage(_error_message(error))]

    def idle(self) -> list[Action]:
        """The client has been silent for too long."""
        if self._closed or self.busy:
            return []
        self._closed = True
        message = {
            "type": "error",
            "message": "the session was idle for too long",
            "error_type": "idle_timeout",
            "code": "idle_timeout",
            "param": None,
            "utterance_index": None,
        }
        return [SendMessage(message), Close(1000, "idle")]

    # What arrives from synthesis.

    def chunk(self, index: int, pcm: bytes, info: BackendInfo, voice: str | None) -> list[Action]:
        """Audio of job `index`: 16-bit little-endian samples."""
        if not self.is_current(index) or not pcm:
            return []
        return [*self._start(index, info, voice), SendAudio(pcm)]

    def finished(
        self, index: int, stats: SynthesisStats, info: BackendInfo, voice: str | None
    ) -> list[Action]:
        """Job `index` has come to its end."""
        if not self.is_current(index):
            return []
        done: dict[str, Any] = {
            "type": "session.done",
            "utterance_index": index,
            "total_sentences": 1,
        }
        return [
            *self._start(index, info, voice),
            SendMessage(stats_message(index, stats, info)),
            SendMessage(done),
            *self._advance(),
        ]

    def failed(self, index: int, error: Exception) -> list[Action]:
        """Job `index` could not be made, or not to its end."""
        if not self.is_current(index):
            return []
        return [SendMessage(_error_message(error, index)), *self._advance()]

    # Inside.

    def _handle(self, kind: str, fields: dict[str, Any]) -> list[Action]:
        if self._ending and kind != "input.cancel":
            raise InvalidRequest(f"{kind} after session.close: expected input.cancel or nothing")
        if kind == "session.config":
            return self._configure(fields)
        if kind == "input.text":
            return self._collect(_validated(_InputText, kind, fields).text)
        _validated(_Empty, kind, fields)
        if kind == "input.done":
            return self._commit()
        if kind == "input.cancel":
            return self._cancel()
        self._ending = True
        self._drop_text()
        return [] if self.busy else self._farewell()

    def _configure(self, fields: dict[str, Any]) -> list[Action]:
        for alias, name in SessionConfig.ALIASES.items():
            if alias in fields and name not in fields:
                fields[name] = fields.pop(alias)
        config = _validated(SessionConfig, "session.config", fields)
        self._check(config)
        self._options = config
        return []

    def _collect(self, text: str) -> list[Action]:
        if self._overflowed:
            return []
        self._n_chars += len(text)
        if self._n_chars <= self._max_text_chars:
            self._pieces.append(text)
            return []
        # The rest of this utterance is passed over, so that its end is not spoken alone.
        n_chars = self._n_chars
        self._drop_text()
        self._overflowed = True
        error = TextTooLong(
            f"the utterance has {n_chars} characters; at most {self._max_text_chars} are "
            "accepted; nothing of it will be spoken, send input.done to begin the next",
            param="text",
        )
        return [SendMessage(_error_message(error, self._next_index))]

    def _commit(self) -> list[Action]:
        text = "".join(self._pieces)
        overflowed = self._overflowed
        self._drop_text()
        index = self._next_index
        self._next_index += 1
        if overflowed:
            return []
        error: ServerError | None = None
        if not has_content(text):
            error = InvalidRequest(
                "input.done without text: expected input.text with visible characters before it",
                param="text",
            )
        elif len(self._waiting) >= _MAX_WAITING:
            error = Busy(f"{_MAX_WAITING} utterances of this session are waiting already")
        if error is not None:
            return [SendMessage(_error_message(error, index))]
        self._waiting.append(Job(index, text, self._options))
        return [] if self.busy else self._advance()

    def _cancel(self) -> list[Action]:
        self._drop_text()
        jobs = [*([self._current] if self._current else []), *self._waiting]
        self._waiting.clear()
        actions: list[Action] = []
        if self._current is not None:
            actions.append(Stop(self._current.index))
        indices: list[int | None] = [job.index for job in jobs] or [None]
        for index in indices:
            actions.append(SendMessage({"type": "audio.cancelled", "utterance_index": index}))
        return [*actions, *self._advance()]

    def _drop_text(self) -> None:
        self._pieces = []
        self._n_chars = 0
        self._overflowed = False

    def _start(self, index: int, info: BackendInfo, voice: str | None) -> list[Action]:
        if self._started or self._current is None:
            return []
        self._started = True
        message = {
            "type": "audio.start",
            "utterance_index": index,
            "sentence_index": 0,
            "sentence_text": self._current.text,
            "format": "pcm",
            "encoding": "s16le",
            "sample_rate": info.sample_rate,
            "channels": 1,
            "voice": voice,
            "source": info.source,
        }
        return [SendMessage(message)]

    def _advance(self) -> list[Action]:
        """The current job is over: begin the next, or take leave when there is none."""
        self._current = None
        self._started = False
        if self._waiting:
            self._current = self._waiting.popleft()
            return [Speak(self._current)]
        return self._farewell() if self._ending else []

    def _farewell(self) -> list[Action]:
        self._closed = True
        message = {
            "type": "session.done",
            "utterance_index": None,
            "total_utterances": self._next_index,
        }
        return [SendMessage(message), Close(1000, "session.close")]


def _parse(data: str) -> tuple[str, dict[str, Any]]:
    """The type of a message and its other fields."""
    try:
        message = from_json(data)
    except ValueError as error:
        raise InvalidRequest(f"expected a JSON object, got invalid JSON: {error}") from None
    if not isinstance(message, dict):
        raise InvalidRequest(f"expected a JSON object, got {type(message).__name__}")
    kind = message.pop("type", None)
    if not isinstance(kind, str) or kind not in _MESSAGES:
        got = "nothing" if kind is None else ascii(kind)[:60]
        raise InvalidRequest(f"type must be one of {', '.join(_MESSAGES)}; got {got}", param="type")
    return kind, message


_ModelT = TypeVar("_ModelT", bound=BaseModel)


def _validated(model: type[_ModelT], kind: str, fields: dict[str, Any]) -> _ModelT:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        known = ["type", *model.model_fields]
        raise describe_validation(error, what=kind, known=known) from None


def _error_message(error: Exception, index: int | None = None) -> dict[str, Any]:
    body = error_body(error)["error"]
    message = {
        "type": "error",
        "message": body["message"],
        "error_type": body["type"],
        "code": body["code"],
        "param": body["param"],
        "utterance_index": index,
    }
    if isinstance(error, Unavailable):
        message["retry_after_s"] = error.retry_after_s
    return message


def stats_message(index: int, stats: SynthesisStats, info: BackendInfo) -> dict[str, Any]:
    """audio.done: the figures of an utterance."""
    return {
        "type": "audio.done",
        "utterance_index": index,
        "sentence_index": 0,
        "ended": stats.ended,
        "ttfb_s": stats.ttfb_s,
        "rtf": stats.rtf,
        "n_chunks": stats.n_chunks,
        "audio_s": stats.audio_s,
        "frames": stats.frames,
        "total_bytes": round(stats.audio_s * info.sample_rate) * 2,
        "stages": stats.stages,
        "warnings": list(stats.warnings),
        "error": False,
    }
