"""The speech protocol of `WS /ws/synthesize` without I/O, as a client sees it.

What the program wants goes in by methods that return the messages to send; what the server sends
goes into `receive`, and comes out as events of the utterances.
"""

from __future__ import annotations

import json
import unicodedata
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from kazeia_client.errors import (
    ApiError,
    Busy,
    ConnectionLost,
    KazeiaError,
    ShuttingDown,
    Unauthorized,
    UnexpectedAnswer,
    UsageError,
    error_of_message,
)
from kazeia_client.foreign import UNUSABLE, optional_text, parsed
from kazeia_client.formats import AudioFormat
from kazeia_client.options import checked_text
from kazeia_client.speech import SpeechStats

__all__ = ["Audio", "Cancelled", "Finished", "SessionProtocol", "SpeechEvent", "Started", "Work"]

# Errors without an utterance behind which the server closes the connection.
_PARTING = ("busy", "idle_timeout", "invalid_api_key", "shutting_down")
_PIECE_CHARS = 16_384  # a message: at most 96 KiB of JSON, of 256 KiB that the server reads


@dataclass(frozen=True, slots=True)
class Started:
    """The first audio is about to come; `text` is the text so far, 1000 characters at most."""

    format: AudioFormat
    voice: str | None
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Audio:
    """A chunk; of PCM always whole samples."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The utterance has been spoken."""

    stats: SpeechStats


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The utterance was given up."""


SpeechEvent = Started | Audio | Finished | Cancelled


@dataclass(eq=False)
class Work:
    """One utterance as the protocol sees it."""

    index: int | None = None  # None: the server has not heard of it
    held: str = ""  # text before the first that surely begins an utterance
    text_done: bool = False
    over: bool = False  # no more events will come in
    started: Started | None = None
    stats: SpeechStats | None = None
    error: Exception | None = None
    events: deque[SpeechEvent] = field(default_factory=deque)  # not yet taken
    buffered: int = 0  # bytes of audio in `events`

    def take(self) -> SpeechEvent | None:
        """The next event; None: not yet, or `over` and taken all.

        Raises the error that the utterance ended with, after the events before it.
        """
        if not self.events:
            if self.error is not None:
                raise self.error
            return None
        event = self.events.popleft()
        if isinstance(event, Audio):
            self.buffered -= len(event.data)
        return event

    @property
    def heard(self) -> bool:
        """Whether nothing of it is left to come or to be taken."""
        return self.over and not self.events

    def silence(self) -> None:
        """Nothing more of it comes out."""
        self.events.clear()
        self.buffered = 0
        self.stats = None
        self.end(Cancelled())

    def end(self, event: SpeechEvent | None = None, error: Exception | None = None) -> None:
        """Nothing comes after this."""
        self.over = True
        self.error = error
        if event is not None:
            self.events.append(event)


class SessionProtocol:
    """One connection.  Utterances are spoken in the order in which they were begun."""

    def __init__(self) -> None:
        self._works: list[Work] = []  # not over
        self._begun: WeakSet[Work] = WeakSet()  # and still of interest to somebody
        self._writing: Work | None = None  # takes text
        self._next_index = 0
        self._speaking: Work | None = None  # whose audio comes
        self._asked = 0  # pings sent, and answered
        self._answered = 0
        self._refused: KazeiaError | None = None  # an error that concerns no utterance
        self._ended: KazeiaError | None = None

    # What the program wants.

    def configure(self, options: Mapping[str, Any], key: str | None = None) -> list[str]:
        """Options of the utterances that follow, preceded by the key if there is one.

        The answer to the ping behind them tells whether they were accepted: see `settled`.
        """
        messages = [_message("session.auth", key=key)] if key is not None else []
        self._refused = None
        self._asked += 1
        return [*messages, _message("session.config", **options), _message("ping")]

    def settled(self) -> bool:
        """Whether the last configuration was accepted; False: not yet.

        Raises the server's error if it was not.
        """
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        if self._ended is not None:
            raise self._ended
        return self._answered == self._asked

    def begin(self) -> tuple[Work, list[str]]:
        """The next utterance; the text of the one before has to be complete, or given up.

        Raises UsageError, and what ended the session.
        """
        if self._ended is not None:
            raise self._ended
        if self._writing is not None and not self._writing.over:
            raise UsageError("the utterance before still takes text: finish() or cancel() it first")
        # One that the server ended early still has its text to be declared complete.
        messages = self.finish(self._writing) if self._writing is not None else []
        self._writing = work = Work()
        self._works.append(work)
        self._begun.add(work)
        return work, messages

    def write(self, work: Work, text: str) -> list[str]:
        """More text; of an utterance that is over already it is passed over.

        Raises UsageError for what is no text, and after the end of the text.
        """
        checked_text(text)
        if work.over or not text:
            return []
        if work.text_done:
            raise UsageError("the text of this utterance is complete: begin another")
        if work.index is None:
            # Only an utterance that begins is counted, and what the server takes for a beginning
            # is its matter; what surely is one is sent, the rest held back until it is.
            work.held += text
            if not any(map(_is_letter, text)):
                return []
            text, work.held = work.held, ""
            self._number(work)
        return _pieces(text)

    def flush(self, work: Work) -> list[str]:
        """Speak what there is of the text."""
        ready = work.index is not None and not work.over and not work.text_done
        return [_message("input.flush")] if ready else []

    def finish(self, work: Work) -> list[str]:
        """The text is complete."""
        if work.text_done or self._ended is not None:
            return []
        work.text_done = True
        if work is self._writing:
            self._writing = None
        messages = []
        if work.index is None:
            if work.over:  # the server never heard of it
                return []
            messages = _pieces(work.held)
            self._number(work)
        return [*messages, _message("input.done")]

    def cancel(self) -> list[str]:
        """Give up every utterance, also what has come of it and was not taken yet."""
        known = any(work.index is not None for work in self._works)
        writing, self._writing = self._writing, None
        if writing is not None:  # an `input.done` for it would be one too many
            known = known or writing.index is not None
            writing.text_done = True
        for work in self._works:
            work.text_done = True
        for work in self._begun:
            if not work.heard:
                work.silence()
        self._works.clear()
        self._speaking = None
        return [_message("input.cancel")] if known and self._ended is None else []

    @property
    def buffered(self) -> int:
        """Bytes of audio that nobody has taken yet."""
        return sum(work.buffered for work in self._begun)

    # What the server sends.

    def receive(self, data: str | bytes) -> None:
        """A frame."""
        if isinstance(data, bytes):
            self._hear(data)
            return
        try:
            message: Any = parsed(data)
            kind = message["type"]
            index = message.get("utterance_index")
            if kind == "pong":
                self._answered += 1
            elif kind == "audio.start":
                self._start(self._find(index), message)
            elif kind == "audio.done":
                if (work := self._find(index)) is not None:
                    work.stats = SpeechStats.of_message(message)
            elif kind == "session.done":
                self._done(self._find(index))
            elif kind == "audio.cancelled":
                self._end(self._find(index), Cancelled())
            elif kind == "error":
                self._fail(index, error_of_message(message))
        except UNUSABLE:
            self.end(UnexpectedAnswer(f"expected a message of the speech protocol: {data[:100]!r}"))
        except UnexpectedAnswer as error:
            self.end(error)

    def closed(self, code: int | None, reason: str) -> None:
        """The connection has ended; `code` None: without a close frame."""
        if self._refused is not None:  # said before it
            error: KazeiaError = self._refused
        elif code == 1012:
            error = ShuttingDown("the server is shutting down", code="shutting_down")
        elif code == 1013:
            error = Busy(reason or "the server has too many connections", code="busy")
        elif code == 1008:
            error = Unauthorized(reason or "the key is not accepted", code="invalid_api_key")
        else:
            why = reason or ("no close frame" if code is None else f"close code {code}")
            error = ConnectionLost(f"the connection ended before the speech did: {why}")
        self.end(error)

    def end(self, error: KazeiaError) -> None:
        """Nothing more will be sent or received."""
        if self._ended is not None:
            return
        self._ended = error
        for work in self._works:
            work.end(error=error)
        self._works.clear()
        self._writing = None
        self._speaking = None

    @property
    def ended(self) -> KazeiaError | None:
        """What ended the session, if it has ended."""
        return self._ended

    # Inside.

    def _hear(self, data: bytes) -> None:
        work = self._speaking
        if work is None or work.started is None:
            return
        try:
            work.started.format.check_whole(data)
        except UsageError as error:
            self.end(UnexpectedAnswer(f"audio came in pieces of samples: {error}"))
            return
        work.events.append(Audio(data))
        work.buffered += len(data)

    def _number(self, work: Work) -> None:
        work.index = self._next_index
        self._next_index += 1

    def _find(self, index: int | None) -> Work | None:
        """The utterance of that number, if it is one that is still waited for."""
        return next(
            (work for work in self._works if index is not None and work.index == index), None
        )

    def _start(self, work: Work | None, message: Mapping[str, Any]) -> None:
        self._speaking = work
        if work is not None:
            work.started = Started(
                format=AudioFormat.of_message(message),
                voice=optional_text(message.get("voice")),
                source=str(message.get("source", "")),
                text=str(message.get("sentence_text", "")),
            )
            work.events.append(work.started)

    def _done(self, work: Work | None) -> None:
        if work is None:
            return
        if work.stats is None:
            raise UnexpectedAnswer("a session.done came without its audio.done")
        self._end(work, Finished(work.stats))

    def _end(
        self,
        work: Work | None,
        event: SpeechEvent | None = None,
        error: KazeiaError | None = None,
    ) -> None:
        if work is None:
            return
        work.end(event, error)
        self._works.remove(work)
        if self._speaking is work:
            self._speaking = None

    def _fail(self, index: int | None, error: ApiError) -> None:
        if index is not None:
            self._end(self._find(index), error=error)
            return
        if self._answered < self._asked or error.code in _PARTING:
            self._refused = error  # whoever waits for the answer, or for the next event, learns it
            return
        # What was meant did not happen, and the server says of what only in words.
        for work in list(self._works):
            self._end(work, error=error)


def _message(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields}, ensure_ascii=False)


def _is_letter(character: str) -> bool:
    return character.isalnum() and "FILLER" not in unicodedata.name(character, "")


def _pieces(text: str) -> list[str]:
    return [
        _message("input.text", text=text[start : start + _PIECE_CHARS])
        for start in range(0, len(text), _PIECE_CHARS)
    ]
