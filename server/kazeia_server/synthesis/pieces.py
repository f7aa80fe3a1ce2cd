"""The text of an utterance as pieces to be spoken one after another.

A text that is complete is cut lazily, so that its length does not delay the first sound.  A text
that is still being written goes through a thread of its own: a piece is handed out with its first
words, and what is written later follows into the voice while that speaks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

from kazeia_server.errors import EngineFailure, ServerError, TextTimeout
from kazeia_server.logging_ import logger
from kazeia_server.text.clean import Cleaner
from kazeia_server.text.drops import Drops
from kazeia_server.text.pieces import Pause, Split
from kazeia_server.text.segment import PieceEnd, Segmenter
from kazeia_server.text.spoken.reader import SignReader
from kazeia_server.voices.backend import BackendInfo, LiveStream

__all__ = ["LiveText", "Piece", "PieceSource", "TextFront", "WholeText"]

_SLICE_CHARS = 400
_PIECE_CHARS = 300
# Without a named voice every piece may come out in another one: as few as a prompt allows.
_NAMELESS_PIECE_CHARS = 1500
_UNSPLIT_CHARS = 20_000


class TextFront:
    """Clean-up, signs in words where the voice needs them, and segmentation of one text."""

    def __init__(
        self, info: BackendInfo, *, clean: bool, split: Split, language: str, live: bool
    ) -> None:
        """`live`: the voice speaks from the first word on, so the first piece need not be short."""
        self._drops = Drops()
        self._filters: list[Cleaner | SignReader] = []
        if clean:
            self._filters.append(Cleaner(self._drops))
        if not info.reads_symbols:
            spoken = info.languages[0] if language == "auto" else language
            self._filters.append(SignReader(spoken, self._drops))
        limit = _PIECE_CHARS if info.voices else _NAMELESS_PIECE_CHARS
        if split == "none":
            limit = _UNSPLIT_CHARS
        quick = bool(info.voices) and not live and split != "none"
        first_limit = info.first_piece_chars if quick else limit
        self._segmenter = Segmenter(split, first_limit=first_limit, limit=limit)

    def feed(self, text: str) -> list[str | PieceEnd]:
        """What is decided of the text so far."""
        for reader in self._filters:
            text = reader.feed(text)
        return self._segmenter.feed(text)

    @property
    def at_word_end(self) -> bool:
        """Whether what comes next of the open piece begins with a space, if anything comes."""
        return self._segmenter.at_word_end

    def flush(self) -> list[str | PieceEnd]:
        """Everything held back; the piece ends here."""
        held = ""
        for reader in self._filters:
            held = reader.feed(held) + reader.flush()
        return [*self._segmenter.feed(held), *self._segmenter.flush()]

    def finish(self) -> list[str | PieceEnd]:
        """Everything held back; there is no more."""
        held = ""
        for reader in self._filters:
            held = reader.feed(held) + reader.finish()
        if self._drops:
            logger.debug("not spoken of the text: %s", self._drops)
        return [*self._segmenter.feed(held), *self._segmenter.finish()]


class Piece:
    """A piece of text, complete or still growing.  Safe to use from several threads."""

    def __init__(self, text: str = "", pause: Pause | None = None) -> None:
        self._text = [text] if text else []
        self._pause = pause
        self._changed = threading.Condition()
        self._dropped = False
        self._settled = False
        # What is given to the voice is in order.  It may take its time over a text, and who drops
        # a piece does not wait for that.
        self._giving = threading.Lock()
        self._stream: LiveStream | None = None

    @property
    def pause(self) -> Pause:
        """What separates it from the next piece; "none" while it is still growing."""
        return self._pause or "none"

    def append(self, text: str) -> None:
        """More text."""
        with self._giving:
            with self._changed:
                self._text.append(text)
                self._settled = False
            if self._stream is not None:
                self._stream.push_text(text)

    def settle(self) -> None:
        """What comes next begins with a space, if anything comes."""
        with self._giving:
            self._settled = True
            if self._stream is not None:
                self._stream.settle_text()

    def end(self, pause: Pause) -> None:
        """The text is complete."""
        with self._giving:
            with self._changed:
                self._pause = pause
                self._changed.notify_all()
            if self._stream is not None:
                self._stream.finish_text()

    def drop(self) -> None:
        """Nobody needs it any more: a blocked complete() returns.  Never blocks."""
        with self._changed:
            self._dropped = True
            self._changed.notify_all()

    def attach(self, stream: LiveStream) -> None:
        """Give a voice the text there is, and what comes later as it comes."""
        with self._giving:
            stream.push_text("".join(self._text))
            if self._pause is not None:
                stream.finish_text()
            elif self._settled:
                stream.settle_text()
            self._stream = stream

    def detach(self) -> None:
        """The voice takes no more text."""
        with self._giving:
            self._stream = None

    def complete(self) -> str:
        """Block until the text is complete, and return it; what there is, once dropped."""
        with self._changed:
            self._changed.wait_for(lambda: self._pause is not None or self._dropped)
            return "".join(self._text)


class PieceSource(Protocol):
    """Pieces in order."""

    def next(self) -> Piece | None:
        """Block until something of the next piece is there; None at the end of the text.

        Raises TextTimeout when the text stopped coming.
        """

    def cancel(self) -> None:
        """A blocked or later next() returns None."""


class WholeText:
    """A text that is complete."""

    def __init__(self, text: str, front: TextFront) -> None:
        self._pieces = _pieces_of(text, front)

    def next(self) -> Piece | None:
        """The next piece, cut now."""
        return next(self._pieces, None)

    def cancel(self) -> None:
        """Nothing ever blocks."""


def _pieces_of(text: str, front: TextFront) -> Iterator[Piece]:
    parts: list[str] = []
    for start in range(0, len(text) + 1, _SLICE_CHARS):
        piece = text[start : start + _SLICE_CHARS]
        last = start + _SLICE_CHARS > len(text)
        for event in [*front.feed(piece), *(front.finish() if last else ())]:
            if isinstance(event, str):
                parts.append(event)
            else:
                yield Piece("".join(parts), event.pause)
                parts = []
    if parts:
        yield Piece("".join(parts), "none")


class _Mark:
    """Something other than text in the order of the text."""


_FLUSH: Final = _Mark()
_FINISH: Final = _Mark()


class LiveText:
    """A text that is being written: push() from any thread, next() from the speaking one."""

    def __init__(self, front: TextFront, timeout_s: float) -> None:
        self._front = front
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._written: deque[str | _Mark] = deque()
        self._pieces: deque[Piece] = deque()
        self._open: Piece | None = None
        self._over = False
        self._cancelled = False
        self._failure: ServerError | None = None
        self._thread = threading.Thread(target=self._work, name="text", daemon=True)
        self._thread.start()

    def push(self, text: str) -> None:
        """Append text as it is; never blocks."""
        self._write(text)

    def flush(self) -> None:
        """Speak what has been written; what follows begins a new piece."""
        self._write(_FLUSH)

    def finish(self) -> None:
        """The text is complete."""
        self._write(_FINISH)

    def next(self) -> Piece | None:
        """Block until something of the next piece is there; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._over or self._cancelled)
            if self._cancelled:
                return None
            if self._pieces:
                return self._pieces.popleft()
            if self._failure is not None:
                raise self._failure
            return None

    def cancel(self) -> None:
        """Unblock everybody; callable from any thread."""
        with self._changed:
            self._cancelled = True
            waiting = [*self._pieces, *([self._open] if self._open else [])]
            self._changed.notify_all()
        for piece in waiting:
            piece.drop()

    def _write(self, item: str | _Mark) -> None:
        with self._changed:
            self._written.append(item)
            self._changed.notify_all()

    def _work(self) -> None:
        """The thread: clean and cut what is written."""
        try:
            while (item := self._take()) is not None:
                if isinstance(item, str):
                    events = self._front.feed(item)
                else:
                    events = self._front.flush() if item is _FLUSH else self._front.finish()
                for event in events:
                    self._handle(event)
                if self._open is not None and self._front.at_word_end:
                    self._open.settle()
                if item is _FINISH:
                    break
        except ServerError as error:  # the voice refuses the text
            self._failure = error
        except Exception:
            logger.exception("the text of an utterance could not be prepared")
            self._failure = EngineFailure("the text could not be prepared; see the server's log")
        self._close()

    def _take(self) -> str | _Mark | None:
        """What was written next; None when it stopped coming, or nobody listens any more."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._written or self._cancelled, timeout=self._timeout_s
            )
            if self._cancelled:
                return None
            if not there:
                self._failure = TextTimeout(
                    f"no text came for {self._timeout_s:g} s: expected more text, or its end",
                    param="text",
                )
                return _FINISH
            return self._written.popleft()

    def _handle(self, event: str | PieceEnd) -> None:
        if isinstance(event, PieceEnd):
            if self._open is not None:
                self._open.end(event.pause)
                self._open = None
        elif self._open is not None:
            self._open.append(event)
        else:
            self._open = Piece(event)
            with self._changed:
                self._pieces.append(self._open)
                self._changed.notify_all()

    def _close(self) -> None:
        piece, self._open = self._open, None
        try:
            if piece is not None:
                piece.end("none")
        except ServerError as error:
            self._failure = self._failure or error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
