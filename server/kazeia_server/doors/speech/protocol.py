"""The speech protocol of the WebSocket, without I/O: messages and events in, actions out.

`server/PROTOCOL.md` specifies it; `SocketProtocol` says what each call is for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from kazeia_server.doors.actions import (
    Action,
    Begin,
    Close,
    Drop,
    End,
    Flush,
    Push,
    SendAudio,
    SendMessage,
)
from kazeia_server.doors.fields import check_size, validated
from kazeia_server.doors.speech.messages import (
    AuthMessage,
    EmptyMessage,
    SessionConfig,
    TextMessage,
    audio_start_message,
    error_message,
    parse_message,
    stats_message,
    translated,
)
from kazeia_server.errors import (
    Busy,
    InvalidRequest,
    ServerError,
    ShuttingDown,
    TextTooLong,
    Unauthorized,
)
from kazeia_server.logging_ import logger
from kazeia_server.ops.auth import KEY_TIMEOUT_S
from kazeia_server.settings import Settings
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.text.segment import has_content
from kazeia_server.voices.backend import BackendInfo, SynthesisStats

__all__ = ["SpeechProtocol"]

_MAX_WAITING = 16
_SHOWN_TEXT = 1000  # characters of the text that audio.start repeats

_ModelT = TypeVar("_ModelT", bound=BaseModel)


@dataclass(eq=False, slots=True)
class _Utterance:
    """One utterance as the client asks for it."""

    index: int
    request: SynthesisRequest
    beginning: str = ""
    n_chars: int = 0
    flushed: bool = True  # no text since the last flush
    info: BackendInfo | None = None  # what speaks it; None: it has not begun
    voice: str | None = None
    started: bool = False  # audio.start has been sent
    sent_bytes: int = 0


class SpeechProtocol:
    """One session; see SocketProtocol.

    `check` raises InvalidRequest for options the voice cannot follow (unknown names).  Unless it is
    `authorized`, the client first has to send a key that `accepts` takes; `key_given`: the
    connection brought one that it does not take.
    """

    frame_bytes: Final = 16 << 10

    def __init__(
        self,
        settings: Settings,
        *,
        now: float,
        check: Callable[[SessionConfig, SynthesisRequest], None] = lambda config, request: None,
        authorized: bool = True,
        accepts: Callable[[str], bool] = lambda key: False,
        key_given: bool = False,
    ) -> None:
        self._settings = settings
        self._check = check
        self._authorized = authorized
        self._accepts = accepts
        self._key_given = key_given
        self._active_at = now
        self._request = _request(SessionConfig(), settings)
        self._blank: list[str] = []  # text before the first visible character of an utterance
        self._n_blank = 0
        self._spoken: deque[_Utterance] = deque()  # the first, and those that wait for it
        self._open: _Utterance | None = None  # the one whose text is being written
        self._deaf = False  # the utterance being written has failed: its text is passed over
        self._next_index = 0
        self._farewell_code: int | None = None  # nothing more will come
        self._closed = False

    # What arrives from the client.

    def receive_text(self, data: str, now: float) -> list[Action]:
        """A text frame."""
        if self._closed:
            return []
        self._active_at = now
        try:
            check_size(data, self._settings.max_message_bytes)
            return self._handle(*parse_message(data))
        except Unauthorized as error:
            return self._hang_up(error)
        except ServerError as error:
            return [SendMessage(error_message(error))]
        except Exception as error:  # a fault of this server must not cost the session
            logger.exception("a message could not be handled")
            return [SendMessage(error_message(error))]

    def receive_bytes(self, size: int, now: float) -> list[Action]:
        """A binary frame; the protocol has none from the client."""
        if self._closed:
            return []
        self._active_at = now
        error = InvalidRequest(f"expected a JSON text frame, got a binary frame of {size} bytes")
        return [SendMessage(error_message(error))]

    # What arrives from synthesis: the utterances are spoken one after another.

    def begun(self, index: int, info: BackendInfo, voice: str | None) -> list[Action]:
        """An utterance is being spoken; it is told with its first audio."""
        if self._is_current(index):
            self._spoken[0].info, self._spoken[0].voice = info, voice
        return []

    def audio(self, index: int, data: bytes) -> list[Action]:
        """Audio of an utterance."""
        if not self._is_current(index) or not data:
            return []
        actions = self._start(self._spoken[0])
        self._spoken[0].sent_bytes += len(data)
        return [*actions, SendAudio(data)]

    def ended(self, index: int, stats: SynthesisStats, now: float) -> list[Action]:
        """An utterance has come to its end."""
        if not self._is_current(index):
            return []
        self._active_at = now
        done: dict[str, Any] = {
            "type": "session.done",
            "utterance_index": index,
            "total_sentences": 1,
        }
        return [
            *self._start(self._spoken[0]),
            SendMessage(stats_message(index, stats, self._spoken[0].sent_bytes)),
            SendMessage(done),
            *self._advance(),
        ]

    def failed(self, index: int, error: Exception, now: float) -> list[Action]:
        """An utterance could not be made, or not to its end."""
        if not self._is_current(index):
            return []
        self._active_at = now
        return [SendMessage(error_message(error, index)), *self._advance()]

    # What arrives from the clock and the server.

    def tick(self, now: float) -> list[Action]:
        """A client that is silent for too long is left."""
        patience_s = self._settings.idle_timeout_s
        if not self._authorized:
            patience_s = min(patience_s, KEY_TIMEOUT_S)
        if self._closed or self._spoken or now - self._active_at < patience_s:
            return []
        if not self._authorized:
            how = "no session.auth came"
            return self._hang_up(Unauthorized.because(given=self._key_given, how=how))
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

    def leave(self) -> list[Action]:
        """The server is going away: what is being spoken may end."""
        if self._closed:
            return []
        self._farewell_code = 1012
        return [] if self._spoken else self._farewell()

    def refuse(self, error: ServerError) -> list[Action]:
        """There are too many sessions."""
        self._closed = True
        return [SendMessage(error_message(error)), Close(1013, "too many connections")]

    # Inside.

    def _is_current(self, index: int) -> bool:
        """Whether `index` is being spoken and has not been cancelled."""
        return bool(self._spoken) and self._spoken[0].index == index and not self._closed

    def _hang_up(self, error: Unauthorized) -> list[Action]:
        self._closed = True
        return [SendMessage(error_message(error)), Close(1008, error.message)]

    def _handle(self, kind: str, fields: dict[str, Any]) -> list[Action]:
        if kind == "session.auth":
            return self._authorize(_checked(AuthMessage, kind, fields).key)
        if not self._authorized:
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
            return self._flush()
        if kind == "input.done":
            return self._complete()
        if kind == "input.cancel":
            return self._cancel()
        if kind == "ping":
            return [SendMessage({"type": "pong"})]
        self._farewell_code = self._farewell_code or 1000
        actions = self._complete() if self._open is not None else []
        self._forget_text()
        return actions if self._spoken else [*actions, *self._farewell()]

    def _check_late(self, kind: str) -> None:
        """After session.close, or while the server drains, nothing new may begin."""
        if kind in ("input.cancel", "ping", "session.close"):
            return
        if self._farewell_code == 1000:
            raise InvalidRequest(f"{kind} after session.close: expected input.cancel or nothing")
        if self._open is None:
            raise ShuttingDown("the server is shutting down")

    def _authorize(self, key: str) -> list[Action]:
        if not self._authorized and not self._accepts(key):
            raise Unauthorized.because(given=True, how="")
        self._authorized = True
        return [SendMessage({"type": "session.authorized"})]

    def _configure(self, fields: dict[str, Any]) -> list[Action]:
        config = _checked(SessionConfig, "session.config", translated(fields))
        request = _request(config, self._settings)
        self._check(config, request)
        self._request = request
        return []

    def _write(self, text: str) -> list[Action]:
        if self._deaf or not text:
            return []
        if self._open is not None:
            return self._append(self._open, text)
        self._blank.append(text)
        self._n_blank += len(text)
        if self._n_blank <= self._settings.max_text_chars and not has_content(text):
            return []
        text = "".join(self._blank)
        self._forget_text()
        utterance = _Utterance(self._next_index, self._request)
        self._next_index += 1
        if len(self._spoken) > _MAX_WAITING:
            self._deaf = True
            error = Busy(f"{_MAX_WAITING} utterances of this session are waiting already")
            return [SendMessage(error_message(error, utterance.index))]
        before = self._spoken[-1].index if self._spoken else None
        self._open = utterance
        self._spoken.append(utterance)
        begin = Begin(utterance.index, utterance.request, before)
        return [begin, *self._append(utterance, text)]

    def _append(self, utterance: _Utterance, text: str) -> list[Action]:
        utterance.n_chars += len(text)
        if utterance.n_chars > self._settings.max_text_chars:
            return self._refuse_text(utterance)
        utterance.beginning += text[: _SHOWN_TEXT - len(utterance.beginning)]
        utterance.flushed = False
        return [Push(utterance.index, text)]

    def _refuse_text(self, utterance: _Utterance) -> list[Action]:
        """Too much text: the utterance ends, and what else is written of it is passed over."""
        self._open = None
        self._deaf = True
        error = TextTooLong(
            f"the utterance has {utterance.n_chars} characters; at most "
            f"{self._settings.max_text_chars} are accepted; it ends here, send input.done to begin "
            "the next",
            param="text",
        )
        self._spoken.remove(utterance)
        message = SendMessage(error_message(error, utterance.index))
        return [Drop(utterance.index), message, *self._goodbye()]

    def _flush(self) -> list[Action]:
        if self._open is None or self._open.flushed:
            return []
        self._open.flushed = True
        return [Flush(self._open.index)]

    def _complete(self) -> list[Action]:
        utterance, self._open = self._open, None
        deaf, self._deaf = self._deaf, False
        self._forget_text()
        if utterance is not None:
            return [End(utterance.index)]
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
        cancelled: list[int | None] = [utterance.index for utterance in self._spoken]
        actions: list[Action] = [Drop(utterance.index) for utterance in self._spoken]
        self._spoken.clear()
        for index in cancelled or [None]:
            actions.append(SendMessage({"type": "audio.cancelled", "utterance_index": index}))
        return [*actions, *self._goodbye()]

    def _forget_text(self) -> None:
        self._blank = []
        self._n_blank = 0

    def _start(self, utterance: _Utterance) -> list[Action]:
        if utterance.started or utterance.info is None:
            return []
        utterance.started = True
        message = audio_start_message(
            utterance.index,
            utterance.beginning,
            utterance.request.output,
            utterance.info,
            utterance.voice,
        )
        return [SendMessage(message)]

    def _advance(self) -> list[Action]:
        """The current utterance is over."""
        if self._spoken.popleft() is self._open:
            self._open = None
            self._deaf = True  # it ended before its text did
        return self._goodbye()

    def _goodbye(self) -> list[Action]:
        """Take leave if nothing more will come."""
        over = self._farewell_code is not None and not self._spoken
        return self._farewell() if over else []

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


def _request(config: SessionConfig, settings: Settings) -> SynthesisRequest:
    return config.request("", settings, output=config.output)


def _checked(model: type[_ModelT], kind: str, fields: dict[str, Any]) -> _ModelT:
    return validated(model, fields, what=kind, known=("type", *model.model_fields))
