"""The speech protocol of the WebSocket, without I/O: messages and events in, actions out.

`server/PROTOCOL.md` specifies it.  The owner of a Protocol feeds it what arrives from the client
(`receive_text`, `receive_bytes`) and from synthesis (`chunk`, `finished`, `failed`), and carries
out the actions each call returns, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel

from kazeia_server.doors.qwen_fields import translated
from kazeia_server.doors.ws_messages import (
    AuthMessage,
    EmptyMessage,
    SessionConfig,
    TextMessage,
    error_message,
    parse_message,
    stats_message,
)
from kazeia_server.errors import (
    Busy,
    InvalidRequest,
    PayloadTooLarge,
    ServerError,
    ShuttingDown,
    TextTooLong,
    Unauthorized,
)
from kazeia_server.logging_ import logger
from kazeia_server.requests import validated
from kazeia_server.synthesis.backend import BackendInfo, SynthesisStats
from kazeia_server.text.segment import has_content

__all__ = [
    "Action",
    "Close",
    "Job",
    "Mark",
    "Protocol",
    "SendAudio",
    "SendMessage",
    "Speak",
    "Stop",
    "Write",
]

_MAX_WAITING = 16
_SHOWN_TEXT = 1000  # characters of the text that audio.start repeats


class Mark(Enum):
    """Something other than text in the order of the text."""

    FLUSH = "flush"
    FINISH = "finish"


Writing = str | Mark


@dataclass(eq=False)
class Job:
    """One utterance as the client asks for it."""

    index: int
    config: SessionConfig
    written: list[Writing] = field(default_factory=list)  # and not yet taken
    beginning: str = ""
    n_chars: int = 0
    complete: bool = False  # input.done has come
    _flushed: bool = True  # no text since the last flush

    def add(self, what: Writing) -> None:
        """More text, or a mark; a flush of nothing is nothing."""
        if isinstance(what, str):
            self.beginning += what[: _SHOWN_TEXT - len(self.beginning)]
        elif what is Mark.FLUSH and self._flushed:
            return
        self._flushed = what is Mark.FLUSH
        self.written.append(what)

    def take(self) -> list[Writing]:
        """What has been written since the last time."""
        written, self.written = self.written, []
        return written

    @property
    def text(self) -> str:
        """The text not yet taken."""
        return "".join(part for part in self.written if isinstance(part, str))


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
    """Begin synthesis of a job with what is written of it; the one before has ended."""

    job: Job


@dataclass(frozen=True, slots=True)
class Write:
    """More was written of the job being spoken."""

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


_ModelT = TypeVar("_ModelT", bound=BaseModel)
Action = SendMessage | SendAudio | Speak | Write | Stop | Close


class Protocol:
    """One session.

    `check` raises InvalidRequest for options the voice cannot follow (unknown names).
    `check_key`: None, or, where a key is still to be given, whether one is accepted; `key_given`:
    the connection brought one that is not.
    """

    def __init__(
        self,
        *,
        max_text_chars: int,
        max_message_bytes: int,
        check: Callable[[SessionConfig], None] = lambda config: None,
        check_key: Callable[[str], bool] | None = None,
        key_given: bool = False,
    ) -> None:
        self._max_text_chars = max_text_chars
        self._max_message_bytes = max_message_bytes
        self._check = check
        self._check_key = check_key
        self._key_given = key_given
        self._config = SessionConfig()
        self._blank: list[str] = []  # text before the first visible character of an utterance
        self._n_blank = 0
        self._open: Job | None = None  # the job whose text is being written
        self._deaf = False  # the utterance being written has failed: its text is passed over
        self._next_index = 0
        self._current: Job | None = None
        self._started = False  # audio.start of the current job has been sent
        self._sent_bytes = 0
        self._waiting: deque[Job] = deque()
        self._farewell_code: int | None = None  # nothing more will come
        self._closed = False

    @property
    def needs_key(self) -> bool:
        """Whether the client still has to send its key."""
        return self._check_key is not None

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
            return self._handle(*parse_message(data))
        except Unauthorized as error:
            self._closed = True
            return _turned_away(error)
        except ServerError as error:
            return [SendMessage(error_message(error))]
        except Exception as error:  # a fault of this server must not cost the session
            logger.exception("a message could not be handled")
            return [SendMessage(error_message(error))]

    def receive_bytes(self, size: int) -> list[Action]:
        """A binary frame of `size` bytes; the protocol has none from the client."""
        if self._closed:
            return []
        error = InvalidRequest(f"expected a JSON text frame, got a binary frame of {size} bytes")
        return [SendMessage(error_message(error))]

    def idle(self) -> list[Action]:
        """The client has been silent for too long."""
        if self._closed or self.busy:
            return []
        self._closed = True
        if self.needs_key:
            return _turned_away(
                Unauthorized.because(given=self._key_given, how="no session.auth came")
            )
        message = {
            "type": "error",
            "message": "the session was idle for too long",
            "error_type": "idle_timeout",
            "code": "idle_timeout",
            "param": None,
            "utterance_index": None,
        }
        return [SendMessage(message), Close(1000, "idle")]

    def drain(self) -> list[Action]:
        """The server is going away: what is being spoken may end."""
        if self._closed:
            return []
        self._farewell_code = 1012
        return [] if self.busy else self._farewell()

    # What arrives from synthesis.

    def chunk(self, index: int, data: bytes, info: BackendInfo, voice: str | None) -> list[Action]:
        """Audio of job `index`, in its format."""
        if not self.is_current(index) or not data:
            return []
        self._sent_bytes += len(data)
        return [*self._start(index, info, voice), SendAudio(data)]

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
            SendMessage(stats_message(index, stats, self._sent_bytes)),
            SendMessage(done),
            *self._advance(),
        ]

    def failed(self, index: int, error: Exception) -> list[Action]:
        """Job `index` could not be made, or not to its end."""
        if not self.is_current(index):
            return []
        return [SendMessage(error_message(error, index)), *self._advance()]

    # Inside.

    def _handle(self, kind: str, fields: dict[str, Any]) -> list[Action]:
        if kind == "session.auth":
            return self._authorize(_checked(AuthMessage, kind, fields).key)
        if self._check_key is not None:
            how = "send session.auth with it first"
            raise Unauthorized.because(given=self._key_given, how=how)
        if self._farewell_code is not None:
            self._check_late(kind)
        if kind == "session.config":
            return self._configure(fields)
        if kind == "input.text":
            return self._write(_checked(TextMessage, kind, fields).text)
        _checked(EmptyMessage, kind, fields)
        if kind == "input.flush":
            return self._mark()
        if kind == "input.done":
            return self._complete()
        if kind == "input.cancel":
            return self._cancel()
        if kind == "ping":
            return [SendMessage({"type": "pong"})]
        self._farewell_code = self._farewell_code or 1000
        actions = self._complete() if self._open is not None else []
        self._forget_text()
        return actions if self.busy else [*actions, *self._farewell()]

    def _check_late(self, kind: str) -> None:
        """After session.close, or while the server drains, nothing new may begin."""
        if kind in ("input.cancel", "ping", "session.close"):
            return
        if self._farewell_code == 1000:
            raise InvalidRequest(f"{kind} after session.close: expected input.cancel or nothing")
        if self._open is None:
            raise ShuttingDown("the server is shutting down")

    def _authorize(self, key: str) -> list[Action]:
        if self._check_key is not None and not self._check_key(key):
            raise Unauthorized.because(given=True, how="")
        self._check_key = None
        return [SendMessage({"type": "session.authorized"})]

    def _configure(self, fields: dict[str, Any]) -> list[Action]:
        config = _checked(SessionConfig, "session.config", translated(fields))
        _ = config.output  # a format that there is not is told now
        self._check(config)
        self._config = config
        return []

    def _write(self, text: str) -> list[Action]:
        if self._deaf or not text:
            return []
        if self._open is not None:
            return self._append(self._open, text)
        self._blank.append(text)
        self._n_blank += len(text)
        if self._n_blank <= self._max_text_chars and not has_content(text):
            return []
        text = "".join(self._blank)
        self._forget_text()
        job = Job(self._next_index, self._config)
        self._next_index += 1
        if len(self._waiting) >= _MAX_WAITING:
            self._deaf = True
            error = Busy(f"{_MAX_WAITING} utterances of this session are waiting already")
            return [SendMessage(error_message(error, job.index))]
        self._open = job
        self._waiting.append(job)
        written = self._append(job, text)
        return written if self.busy or not self._waiting else [*self._advance(), *written]

    def _append(self, job: Job, text: str) -> list[Action]:
        job.n_chars += len(text)
        if job.n_chars > self._max_text_chars:
            return self._refuse(job)
        return self._put(job, text)

    def _put(self, job: Job, what: Writing) -> list[Action]:
        job.add(what)
        return [Write(job)] if job is self._current else []

    def _refuse(self, job: Job) -> list[Action]:
        """Too much text: the utterance ends, and what else is written of it is passed over."""
        self._open = None
        self._deaf = True
        error = TextTooLong(
            f"the utterance has {job.n_chars} characters; at most {self._max_text_chars} are "
            "accepted; it ends here, send input.done to begin the next",
            param="text",
        )
        message = SendMessage(error_message(error, job.index))
        if job is self._current:
            return [Stop(job.index), message, *self._advance()]
        self._waiting.remove(job)
        return [message]

    def _mark(self) -> list[Action]:
        return [] if self._open is None else self._put(self._open, Mark.FLUSH)

    def _complete(self) -> list[Action]:
        job, self._open = self._open, None
        deaf, self._deaf = self._deaf, False
        self._forget_text()
        if job is not None:
            job.complete = True
            return self._put(job, Mark.FINISH)
        if deaf:
            return []
        index = self._next_index
        self._next_index += 1
        error = InvalidRequest(
            "input.done without text: expected input.text with visible characters before it",
            param="text",
        )
        return [SendMessage(error_message(error, index))]

    def _cancel(self) -> list[Action]:
        self._open = None
        self._deaf = False
        self._forget_text()
        jobs = [*([self._current] if self._current else []), *self._waiting]
        self._waiting.clear()
        actions: list[Action] = []
        if self._current is not None:
            actions.append(Stop(self._current.index))
        indices: list[int | None] = [job.index for job in jobs] or [None]
        for index in indices:
            actions.append(SendMessage({"type": "audio.cancelled", "utterance_index": index}))
        return [*actions, *self._advance()]

    def _forget_text(self) -> None:
        self._blank = []
        self._n_blank = 0

    def _start(self, index: int, info: BackendInfo, voice: str | None) -> list[Action]:
        if self._started or self._current is None:
            return []
        self._started = True
        output = self._current.config.output
        message = {
            "type": "audio.start",
            "utterance_index": index,
            "sentence_index": 0,
            "sentence_text": self._current.beginning,
            "format": output.name,
            "encoding": "s16le" if output.name == "pcm" else None,
            "content_type": output.content_type,
            "sample_rate": output.rate_for(info.sample_rate),
            "channels": 1,
            "voice": voice,
            "source": info.source,
        }
        return [SendMessage(message)]

    def _advance(self) -> list[Action]:
        """The current job is over: begin the next, or take leave when there is none."""
        if self._current is not None and self._current is self._open:
            self._open = None
            self._deaf = True  # it ended before its text did
        self._current = None
        self._started = False
        self._sent_bytes = 0
        if self._waiting:
            self._current = self._waiting.popleft()
            return [Speak(self._current)]
        return self._farewell() if self._farewell_code is not None else []

    def _farewell(self) -> list[Action]:
        self._closed = True
        message = {
            "type": "session.done",
            "utterance_index": None,
            "total_utterances": self._next_index,
        }
        code = self._farewell_code or 1000
        reason = "session.close" if code == 1000 else "the server is shutting down"
        return [SendMessage(message), Close(code, reason)]


def _turned_away(error: Unauthorized) -> list[Action]:
    return [SendMessage(error_message(error)), Close(1008, error.message)]


def _checked(model: type[_ModelT], kind: str, fields: dict[str, Any]) -> _ModelT:
    return validated(model, fields, what=kind, known=("type", *model.model_fields))
