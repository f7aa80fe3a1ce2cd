"""Speech of a text that is still being written."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kazeia_engine.errors import EngineError, InvalidInput, KazeiaError
from kazeia_engine.prompt import MAX_TEXT_TOKENS, text_ids
from kazeia_engine.stream import Stream
from kazeia_engine.tokenizer import Tokenizer
from kazeia_engine.types import Chunk, Result

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LiveStream", "StableText"]


class StableText:
    """Tokens of a growing text that nothing written later can change.

    The ids of all feeds and of finish() together are those of the whole text.  Text is let go up
    to the last place where a letter or digit is followed by a space, punctuation or a symbol:
    there the Qwen pattern splits whatever stands around, and NFC composes nothing across it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held: list[str] = []  # without such a place
        self._begun = False

    def settle(self) -> list[int]:
        """What is written next will begin with a space or punctuation, if anything is: the ids
        that are certain with this.
        """
        last = self._held[-1][-1] if self._held else ""
        if not last or unicodedata.category(last)[0] not in "LN":
            return []
        return self.finish()

    def feed(self, text: str) -> list[int]:
        """Append `text`; the ids that have become certain.

        Raises:
            InvalidInput: the text is not valid Unicode, or holds a control sequence of the model.
        """
        before = self._held[-1][-1] if self._held else ""
        cut = _last_cut(before + text) - len(before)
        if cut < 0:
            self._held += [text] if text else []
            return []
        sure = "".join(self._held) + text[:cut]
        self._held = [text[cut:]]
        return self._encode(sure)

    def finish(self) -> list[int]:
        """The text is complete: the ids of what was held back."""
        rest, self._held = "".join(self._held), []
        return self._encode(rest)

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        begun, self._begun = self._begun, True
        return self._tokenizer.encode(text) if begun else text_ids(self._tokenizer, text)


def _last_cut(text: str) -> int:
    """The last place in `text` where it can be cut; -1: there is none."""
    for at in range(len(text) - 1, 0, -1):
        apart = text[at].isspace() or unicodedata.category(text[at])[0] in "ZPS"
        if apart and unicodedata.category(text[at - 1])[0] in "LN":
            return at
    return -1


class LiveStream:
    """Chunks of an utterance whose text comes by push_text; see Model.stream_live.

    One thread iterates, and waits while the text has run dry; any thread may push text, finish it
    or close the stream.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        closing_id: int,
        open_stream: Callable[[list[int], bool], Stream],
    ) -> None:
        self._text = StableText(tokenizer)
        self._closing_id = closing_id
        self._open_stream = open_stream
        self._writing = threading.Lock()  # whoever writes; may be held for as long as text takes
        self._changed = threading.Condition()  # of the stream, its failure and its end; never is
        self._stream: Stream | None = None
        self._failure: KazeiaError | None = None
        self._n_tokens = 0
        self._finished = self._closed = False

    def push_text(self, text: str) -> None:
        """Append text as it is.

        Raises:
            InvalidInput: the text was finished, is not valid Unicode, or has too many tokens.
        """
        self._push(lambda: self._text.feed(text), closing=False)

    def settle_text(self) -> None:
        """Promise that the next text begins with a space or punctuation, or never comes: the last
        word need not wait for it.

        Raises:
            InvalidInput: the text was finished.
        """
        self._push(self._text.settle, closing=False)

    def finish_text(self) -> None:
        """The text is complete: speech may end.

        Raises:
            InvalidInput: the text was finished before.
        """
        self._push(self._text.finish, closing=True)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        with self._changed:
            self._changed.wait_for(
                lambda: self._stream is not None or self._failure is not None or self._closed
            )
            stream = self._stream
            if stream is None:
                if self._failure is not None:
                    raise self._failure
                raise StopIteration
        chunk = next(stream, None)
        if chunk is not None:
            return chunk
        if self._failure is not None:  # a text that was refused had the stream closed
            raise self._failure
        raise StopIteration

    @property
    def result(self) -> Result:
        """Codes and figures of the finished utterance.

        Raises:
            EngineError: the stream has not ended yet, never began, or failed.
        """
        if self._stream is None:
            raise EngineError("the stream has no result: it has not begun")
        return self._stream.result

    def close(self) -> None:
        """Cancels what is not finished; the reading thread then sees the end of the stream."""
        with self._changed:
            self._closed = True
            stream = self._stream
            self._changed.notify_all()
        if stream is not None:
            stream.close()

    def _push(self, take: Callable[[], list[int]], *, closing: bool) -> None:
        with self._writing:
            if self._failure is not None:
                raise self._failure
            if self._finished:
                raise InvalidInput("the text of this stream is complete", param="text")
            self._finished = closing
            try:
                self._hand_over(take(), closing)
            except KazeiaError as error:
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                if self._stream is not None:
                    self._stream.close()
                raise

    def _hand_over(self, ids: list[int], closing: bool) -> None:
        self._n_tokens += len(ids)
        if self._n_tokens > MAX_TEXT_TOKENS:
            raise InvalidInput(
                f"the text has more than {MAX_TEXT_TOKENS} tokens; split it", param="text"
            )
        if self._closed:
            return
        if closing:
            if not self._n_tokens:
                raise InvalidInput("the text is empty, expected something to say", param="text")
            ids = [*ids, self._closing_id]
        if self._stream is not None:
            self._stream.push_ids(ids, closing=closing)
        elif ids:
            self._begin(self._open_stream(ids, closing))

    def _begin(self, stream: Stream) -> None:
        with self._changed:
            self._stream = stream
            closed = self._closed  # while it was opened
            self._changed.notify_all()
        if closed:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
