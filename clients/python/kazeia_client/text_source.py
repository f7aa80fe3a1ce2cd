"""Text that may still be being written, and may be asked for more than once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from concurrent.futures import CancelledError

from kazeia_client.errors import KazeiaError, UsageError

__all__ = ["Text", "TextSource"]

Text = str | Iterable[str] | AsyncIterable[str]

_AHEAD = 64  # pieces that may be drawn, and again in a thread, before somebody takes one


class TextSource:
    """The pieces of a text, from its beginning for everybody who asks.

    A plain iterable is advanced in a thread of its own, since it may block (standard input, a
    language model).  Either is advanced only as fast as its pieces are taken.  Belongs to the
    event loop in which it is made; `close` it.
    """

    def __init__(self, text: Text) -> None:
        self._pieces: list[str] = []
        self._dropped = 0  # pieces before the first of `_pieces`
        self._taken = 0  # pieces that somebody has had
        self._kept = True  # for whoever begins again
        self._closed = False
        self._room = asyncio.Event()
        self._complete = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self.is_whole = isinstance(text, str)
        if isinstance(text, str):
            self._pieces.append(text)
            self._complete = True
        elif isinstance(text, AsyncIterable):
            self._pump = asyncio.create_task(self._draw(text))
        elif isinstance(text, Iterable):
            self._pump = asyncio.create_task(self._draw(_threaded(text)))
        else:
            raise UsageError(f"expected text, or an iterable of it, got {type(text).__name__}")

    async def pieces(self) -> AsyncIterator[str]:
        """All pieces.

        Raises the exception that the iterable raised; a KazeiaError for what is not meant for
        whoever takes the audio, such as SystemExit or a cancellation of its own.
        """
        at = self._dropped
        while True:
            while at < self._dropped + len(self._pieces):
                piece = self._pieces[at - self._dropped]
                at += 1
                self._taken = max(self._taken, at)
                self._drop()
                self._room.set()
                yield piece
            if self._error is not None:
                raise self._error
            if self._complete:
                return
            self._changed.clear()
            await self._changed.wait()

    def forget(self) -> None:
        """Nobody will ask for the pieces from the beginning any more."""
        self._kept = False
        self._drop()

    def _drop(self) -> None:
        if not self._kept:
            del self._pieces[: self._taken - self._dropped]
            self._dropped = self._taken

    async def close(self) -> None:
        """Draw no more."""
        self._closed = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    async def _draw(self, text: AsyncIterable[str]) -> None:
        try:
            async for piece in text:
                self._pieces.append(piece)
                self._changed.set()
                while self._dropped + len(self._pieces) - self._taken >= _AHEAD:
                    self._room.clear()
                    await self._room.wait()
            self._complete = True
        except BaseException as error:
            if self._closed and isinstance(error, asyncio.CancelledError):
                raise
            self._error = _raisable(error)
        finally:
            self._changed.set()


async def _threaded(text: Iterable[str]) -> AsyncIterator[str]:
    """The pieces of an iterable that may block.

    Its thread is a daemon: one that waits for standard input must not keep a process alive.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | Exception | None] = asyncio.Queue(_AHEAD)
    left = threading.Event()

    def put(item: str | Exception | None) -> None:
        putting = queue.put(item)
        try:
            asyncio.run_coroutine_threadsafe(putting, loop).result()
        except (RuntimeError, CancelledError):  # the loop has ended
            putting.close()
            left.set()

    def read() -> None:
        try:
            for piece in text:
                if left.is_set():
                    return
                put(piece)
            put(None)
        except BaseException as error:
            put(_raisable(error))

    threading.Thread(target=read, name="kazeia-text", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        left.set()
        while not queue.empty():  # a thread that waits for room sees that nobody listens
            queue.get_nowait()


def _raisable(error: BaseException) -> Exception:
    """An error that ends a task, and neither its event loop nor as if somebody cancelled it."""
    if isinstance(error, Exception):
        return error
    broke_off = KazeiaError(f"the text broke off: {type(error).__name__}: {error}".rstrip(": "))
    broke_off.__cause__ = error
    return broke_off
