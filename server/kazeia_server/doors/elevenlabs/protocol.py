"""The ElevenLabs text-to-speech WebSockets, without I/O: messages and events in, actions out.

Two protocols share everything but their framing: `MultiContext` (`multi-stream-input`) and
`SingleContext` (`stream-input`).  `SocketProtocol` says what each call is for.

Messages, fields and limits follow the AsyncAPI description of ElevenLabs' documentation and the
models of its Python package.  Where those leave a choice, the plug-ins of livekit and pipecat
decide:

- `close_context` is sent both at the end of a turn, after a flush, and when the user interrupts.
  What was flushed is spoken to its end ("if it has already been set to flush it will continue
  flushing"); with text written since the last flush, the context falls silent at once.  A second
  `close_context` for a context that is still being spoken also means silence.
- A flush, an empty text or a close for an unknown context opens none: both plug-ins can send one
  after an interruption, and would run into the limit of contexts.
- `isFinal` comes exactly once for each context that was closed, also after an error.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kazeia_server.doors.actions import (
    Action,
    Begin,
    Close,
    Drop,
    End,
    Flush,
    Push,
    SendMessage,
)
from kazeia_server.doors.elevenlabs.messages import (
    GOING_AWAY,
    POLICY_VIOLATION,
    Message,
    Refused,
    close_code,
    error_message,
    keys_of,
    parse_message,
    speed_of,
)
from kazeia_server.doors.fields import check_size, json_object
from kazeia_server.errors import (
    Busy,
    InvalidRequest,
    ServerError,
    TextTimeout,
    TextTooLong,
    Unauthorized,
)
from kazeia_server.logging_ import logger
from kazeia_server.ops.auth import KEY_TIMEOUT_S
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.text.segment import has_content
from kazeia_server.voices.backend import BackendInfo, SynthesisStats

__all__ = ["MAX_CONTEXTS", "Limits", "MultiContext", "Protocol", "SingleContext"]

MAX_CONTEXTS = 5
_DEFAULT_CONTEXT = "default"  # of messages that name none
_MAX_REASON_BYTES = 120  # a close frame has room for 123
_SENTENCE_ENDS = (".", "!", "?", "…")
_CLOSING_MARKS = "\"'”’»)]"
# An utterance whose text has all been flushed gives its slot back after so long; the context
# stays, and its next text begins another utterance.
_REST_S = 2.0
_MAX_WAITING = 64  # utterances being spoken or waiting, of all contexts


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection.

    `inactivity_s`: silence of the client that closes a context, and at last the connection.
    `patience_s`: an utterance that gets no text for so long is taken as complete.
    """

    max_message_bytes: int
    max_text_chars: int
    inactivity_s: float
    patience_s: float


@dataclass(slots=True)
class _Context:
    id: str
    active_at: float
    after: int | None = None  # the last utterance of an earlier context of the same id
    voice_settings: dict[str, Any] = field(default_factory=dict)
    speed: float = 1.0
    utterances: list[int] = field(default_factory=list)  # not ended yet, in their order
    writing: int | None = None  # the utterance that takes text
    started: bool = False  # text has been written
    flushed: bool = True  # of `utterances`, nothing was written since the last flush
    written_at: float = 0.0
    n_chars: int = 0  # of `utterances`
    closed: bool = False


class Protocol(ABC):
    """What both protocols have in common; see SocketProtocol.

    `order` is what the address of the connection asks for, without text; it raises a ServerError
    where the voice does not have that, and is called with the first message.  `check_text` raises
    InvalidRequest for text that cannot be spoken.  Without `authorized`, the first message has to
    hold a key that `accepts` takes; `key_given`: the connection brought one that it does not take.
    `sentences`: a message holds whole sentences or phrases, and may lack the space after them.
    """

    frame_bytes: Final = 12 << 10  # a multiple of 6: whole samples, and base64 without padding

    def __init__(
        self,
        limits: Limits,
        *,
        now: float,
        order: Callable[[], SynthesisRequest],
        check_text: Callable[[str], None] = lambda text: None,
        authorized: bool = True,
        accepts: Callable[[str], bool] = lambda key: False,
        key_given: bool = False,
        sentences: bool = False,
    ) -> None:
        self._limits = limits
        self._order = order
        self._request: SynthesisRequest | None = None  # until the first message
        self._check_text = check_text
        self._authorized = authorized
        self._accepts = accepts
        self._key_given = key_given
        self._sentences = sentences
        self._active_at = self._connected_at = now
        self._open: dict[str, _Context] = {}
        self._speaking: dict[int, _Context] = {}  # by utterance; of closed contexts, too
        self._next_index = 0
        self._farewell: Close | None = None  # once nothing is spoken any more
        self._closed = False

    # What arrives from the client.

    def receive_text(self, data: str, now: float) -> list[Action]:
        """A text frame."""
        if self._closed:
            return []
        self._active_at = now
        try:
            return self._handle(parse_message(self._admit(data)), now)
        except Refused as refused:
            return self._hang_up(refused.message, refused.code)
        except ServerError as error:
            return [SendMessage(error_message(error))]
        except Exception as error:  # a fault of this server must not cost the connection
            logger.exception("a message could not be handled")
            return [SendMessage(error_message(error))]

    def receive_bytes(self, size: int, now: float) -> list[Action]:
        """A binary frame of `size` bytes; neither protocol has any."""
        if self._closed:
            return []
        self._active_at = now
        error = InvalidRequest(f"expected a JSON text frame, got a binary frame of {size} bytes")
        message = error_message(error)
        if self._authorized:
            return [SendMessage(message)]
        return self._hang_up(message, POLICY_VIOLATION)

    # What arrives from synthesis.

    def begun(self, index: int, info: BackendInfo, voice: str | None) -> list[Action]:
        """Nothing is told of it."""
        return []

    def audio(self, index: int, data: bytes) -> list[Action]:
        """Audio of utterance `index` in the connection's output format."""
        context = self._speaking.get(index)
        if context is None or self._closed or not data:
            return []
        message = {
            "audio": base64.b64encode(data).decode("ascii"),
            "alignment": None,
            "normalizedAlignment": None,
        }
        return [SendMessage({**message, **self._tag(context)})]

    def ended(self, index: int, stats: SynthesisStats, now: float) -> list[Action]:
        """Utterance `index` has come to its end."""
        context = self._settle(index, now)
        return [] if context is None else self._conclude(context)

    def failed(self, index: int, error: Exception, now: float) -> list[Action]:
        """Utterance `index` could not be made, or not to its end."""
        context = self._settle(index, now)
        if context is None:
            return []
        if isinstance(error, TextTimeout):  # what had been written was spoken
            return self._conclude(context)
        return self._give_up(context, error)

    # What arrives from the clock and the server.

    def tick(self, now: float) -> list[Action]:
        """Time passes; call it at least once a second."""
        if self._closed:
            return []
        if not self._authorized:
            late = now - self._connected_at >= KEY_TIMEOUT_S
            error = self._unauthorized()
            return self._close(POLICY_VIOLATION, error.message) if late else []
        actions: list[Action] = []
        for context in list(self._open.values()):
            if context.writing is not None:
                limit = _REST_S if context.flushed else self._limits.inactivity_s
                if now - context.written_at >= min(limit, self._limits.patience_s):
                    actions += self._end(context)
        idle = not self._speaking and now - self._active_at >= self._limits.inactivity_s
        if idle and self._farewell is None:
            return [*actions, *self._idle()]
        return [*actions, *self._expire(now)]

    def leave(self) -> list[Action]:
        """The server goes away: what is written is still spoken, then the connection ends."""
        if self._closed or self._farewell is not None:
            return []
        self._farewell = Close(GOING_AWAY, "the server is shutting down")
        actions: list[Action] = []
        for context in list(self._open.values()):
            actions += self._finish(context)
        return [*actions, *self._goodbye()]

    def refuse(self, error: ServerError) -> list[Action]:
        """The server does not serve this connection."""
        return self._hang_up(error_message(error), close_code(error))

    # What differs.

    @abstractmethod
    def _handle(self, message: Message, now: float) -> list[Action]:
        """Do what an admitted message says."""

    @abstractmethod
    def _tag(self, context: _Context) -> dict[str, Any]:
        """Fields that say which context a message is about."""

    @abstractmethod
    def _give_up(self, context: _Context, error: Exception) -> list[Action]:
        """A context has failed."""

    @abstractmethod
    def _idle(self) -> list[Action]:
        """The client has been silent for too long, and nothing is being spoken."""

    @abstractmethod
    def _expire(self, now: float) -> list[Action]:
        """End contexts that have been silent for too long."""

    # Inside.

    def _admit(self, data: str) -> dict[str, Any]:
        """The fields of a message from a client that may send it."""
        try:
            check_size(data, self._limits.max_message_bytes)
            fields = json_object(data)
        except InvalidRequest as error:
            if self._authorized:
                raise
            raise Refused(error_message(error), POLICY_VIOLATION) from None
        if not self._authorized:
            keys = list(keys_of(fields))
            if not any(map(self._accepts, keys)):
                unauthorized = self._unauthorized(given=bool(keys))
                raise Refused(error_message(unauthorized), POLICY_VIOLATION)
            self._authorized = True
        if self._request is None:
            try:
                self._request = self._order()
            except ServerError as error:
                raise Refused(error_message(error), close_code(error)) from None
        return fields

    def _unauthorized(self, *, given: bool = False) -> Unauthorized:
        how = "send it as the header xi-api-key, or as xi_api_key in the first message"
        return Unauthorized.because(given=given or self._key_given, how=how)

    def _configure(self, context: _Context, settings: dict[str, Any] | None) -> None:
        """Apply voice_settings, which may not change once a context has text."""
        if not settings or settings == context.voice_settings:
            return
        if context.started:
            message = (
                "voice_settings of a context may not change once it has text: "
                "expected them with its first message"
            )
            raise Refused(error_message(InvalidRequest(message)), POLICY_VIOLATION)
        context.speed = speed_of(settings)
        context.voice_settings = settings

    def _write(self, context: _Context, text: str, now: float) -> list[Action]:
        """Text for a context; the first that can be seen begins an utterance."""
        if self._sentences and text.rstrip(_CLOSING_MARKS).endswith(_SENTENCE_ENDS):
            text += " "
        if context.n_chars + len(text) > self._limits.max_text_chars:
            raise TextTooLong(
                f"at most {self._limits.max_text_chars} characters of a context may wait to be "
                "spoken; this text is passed over",
                param="text",
            )
        visible = has_content(text)
        if not text or (not visible and (context.writing is None or context.flushed)):
            return []
        if visible:
            self._check_text(text)
        actions: list[Action] = []
        if context.writing is None:
            if len(self._speaking) >= _MAX_WAITING:
                raise Busy(
                    f"{_MAX_WAITING} utterances of this connection are waiting; this text is "
                    "passed over"
                )
            index = self._next_index
            self._next_index += 1
            before = context.utterances[-1] if context.utterances else context.after
            assert self._request is not None  # text comes with a message
            actions.append(Begin(index, replace(self._request, speed=context.speed), before))
            self._speaking[index] = context
            context.utterances.append(index)
            context.writing = index
            context.started = True
        context.n_chars += len(text)
        actions.append(Push(context.writing, text))
        if visible:
            context.flushed = False
            context.written_at = now
        return actions

    def _flush(self, context: _Context, now: float) -> list[Action]:
        if context.flushed:
            return []
        context.flushed = True
        context.written_at = now
        return [] if context.writing is None else [Flush(context.writing)]

    def _end(self, context: _Context) -> list[Action]:
        """No more text for the utterance being written."""
        if context.writing is None:
            return []
        index, context.writing = context.writing, None
        return [End(index)]

    def _finish(self, context: _Context) -> list[Action]:
        """Speak all of it and close the context."""
        self._shut(context)
        return [*self._end(context), *self._conclude(context)]

    def _silence(self, context: _Context) -> list[Action]:
        """Close the context at once."""
        self._shut(context)
        return [*self._drop(context), *self._conclude(context)]

    def _shut(self, context: _Context) -> None:
        context.closed = True
        if self._open.get(context.id) is context:
            del self._open[context.id]

    def _drop(self, context: _Context) -> list[Action]:
        actions: list[Action] = [Drop(index) for index in context.utterances]
        for index in context.utterances:
            del self._speaking[index]
        context.utterances = []
        context.writing = None
        return actions

    def _settle(self, index: int, now: float) -> _Context | None:
        """Take an utterance that is over from its context; None: nobody waits for it."""
        context = self._speaking.pop(index, None)
        if context is None or self._closed:
            return None
        context.utterances.remove(index)
        if context.writing == index:
            context.writing = None
        if not context.utterances:
            context.flushed = True
            context.n_chars = 0
        context.active_at = self._active_at = now
        return context

    def _conclude(self, context: _Context) -> list[Action]:
        """Say that a context is over, if it is closed and all of it has been sent."""
        if not context.closed or context.utterances:
            return []
        final = {"audio": None, "isFinal": True, **self._tag(context)}
        return [SendMessage(final), *self._goodbye()]

    def _goodbye(self) -> list[Action]:
        if self._farewell is None or self._open or self._speaking or self._closed:
            return []
        self._closed = True
        return [self._farewell]

    def _hang_up(self, message: dict[str, Any], code: int) -> list[Action]:
        """Close the connection, saying why."""
        return [SendMessage({**message, "code": code}), *self._close(code, message["message"])]

    def _close(self, code: int, reason: str) -> list[Action]:
        self._closed = True
        return [Close(code, reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore"))]

    def _time_out(self) -> list[Action]:
        message = (
            f"no message came for {self._limits.inactivity_s:g} seconds: send text, or an empty "
            "text to keep a context alive"
        )
        named = {"message": message, "error": "input_timeout_exceeded"}
        return self._hang_up(named, POLICY_VIOLATION)


class MultiContext(Protocol):
    """`multi-stream-input`: up to five open contexts, spoken side by side."""

    def _handle(self, message: Message, now: float) -> list[Action]:
        name = _DEFAULT_CONTEXT if message.context_id is None else message.context_id
        context = self._open.get(name)
        if message.close_context:
            return self._close_context(name, context)
        if self._farewell is not None:
            return []
        if message.close_socket:
            return self._close_socket()
        try:
            if context is None:
                if not message.text:
                    return []
                context = self._create(name, now)
            context.active_at = now
            self._configure(context, message.voice_settings)
            actions = self._write(context, message.text or "", now)
        except ServerError as error:
            return [SendMessage({**error_message(error), "contextId": name})]
        if message.flush:
            actions += self._flush(context, now)
        return actions

    def _create(self, name: str, now: float) -> _Context:
        if len(self._open) >= MAX_CONTEXTS:
            raise Refused(
                {
                    "message": f"at most {MAX_CONTEXTS} contexts may be open on a connection: "
                    "close one before opening another",
                    "error": "max_active_conversations",
                    "contextId": name,
                },
                POLICY_VIOLATION,
            )
        earlier = [index for index, other in self._speaking.items() if other.id == name]
        context = _Context(name, now, after=earlier[-1] if earlier else None)
        self._open[name] = context
        return context

    def _close_context(self, name: str, context: _Context | None) -> list[Action]:
        if context is not None:
            return self._finish(context) if context.flushed else self._silence(context)
        closing = {id(other): other for other in self._speaking.values() if other.id == name}
        return [action for other in closing.values() for action in self._silence(other)]

    def _close_socket(self) -> list[Action]:
        self._farewell = Close(1000, "close_socket")
        actions: list[Action] = []
        for context in list(self._open.values()):
            actions += self._finish(context) if context.flushed else self._silence(context)
        return [*actions, *self._goodbye()]

    def _tag(self, context: _Context) -> dict[str, Any]:
        return {"contextId": context.id}

    def _give_up(self, context: _Context, error: Exception) -> list[Action]:
        message = {**error_message(error), **self._tag(context)}
        return [SendMessage(message), *self._silence(context)]

    def _idle(self) -> list[Action]:
        return self._time_out() if self._open else self._close(1000, "idle")

    def _expire(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for context in list(self._open.values()):
            silent = now - context.active_at >= self._limits.inactivity_s
            if silent and not context.utterances:
                actions += self._finish(context)
        return actions


class SingleContext(Protocol):
    """`stream-input`: one text, which an empty message ends; then the connection is closed."""

    def _handle(self, message: Message, now: float) -> list[Action]:
        if self._farewell is not None:
            return []
        context = self._open.get(_DEFAULT_CONTEXT)
        if context is None:
            context = self._open[_DEFAULT_CONTEXT] = _Context(_DEFAULT_CONTEXT, now)
        self._configure(context, message.voice_settings)
        if message.text == "" or message.close_socket:
            self._farewell = Close(1000, "")
            return self._finish(context)
        actions = self._write(context, message.text or "", now)
        if message.flush:
            actions += self._flush(context, now)
        return actions

    def _tag(self, context: _Context) -> dict[str, Any]:
        return {}

    def _give_up(self, context: _Context, error: Exception) -> list[Action]:
        return self._hang_up(error_message(error), close_code(error))

    def _idle(self) -> list[Action]:
        return self._time_out()

    def _expire(self, now: float) -> list[Action]:
        return []  # the context ends with the connection
