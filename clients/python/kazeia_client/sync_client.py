"""The client for programs without asyncio: the asynchronous one, run by a thread of its own."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from kazeia_client.async_client import MAX_BUFFERED, AsyncClient, AsyncSpeechStream
from kazeia_client.async_session import AsyncSession, AsyncUtterance, UtteranceFacts
from kazeia_client.errors import UsageError
from kazeia_client.formats import AudioFormat
from kazeia_client.options import SpeechOptions
from kazeia_client.playback import Player
from kazeia_client.protocol import SpeechEvent
from kazeia_client.retry import Retry
from kazeia_client.speech import SpeechStats
from kazeia_client.text_source import Text

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Client", "Session", "SpeechStream", "Utterance"]

_AsyncT = TypeVar("_AsyncT")
_Args = ParamSpec("_Args")
_ResultT = TypeVar("_ResultT")


class _Loop:
    """An event loop in a thread, which ends with the last object that uses it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run_loop, args=(self._loop,), name="kazeia-client", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        """The result of `work`; whatever interrupts the wait for it cancels it."""
        if not self.usable:
            work.close()
            raise UsageError(
                "the client was made before a fork: expected one of each process's own"
                if self._forked
                else "the client is closed"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise UsageError("the client was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def usable(self) -> bool:
        """Whether something may be run, or closed."""
        return not self.closed and not self._forked

    @property
    def _forked(self) -> bool:
        """Whether this is a child of the process that has the thread."""
        return os.getpid() != self._process

    def next(self, items: AsyncIterator[_ResultT]) -> _ResultT:
        """The next item.

        Raises StopIteration.
        """
        try:
            return self.run(_next(items))
        except StopAsyncIteration:
            raise StopIteration from None

    def start(self, close: Any) -> None:
        """Begin to close something, from wherever the garbage collector runs."""
        if self.usable:
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(close()))

    def close(self) -> None:
        """End the thread."""
        self.abandon()
        if not self._forked:
            self._thread.join()

    def abandon(self) -> None:
        """Let the thread end by itself."""
        if self.usable:
            self.closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def __del__(self) -> None:
        self.abandon()


async def _next(items: AsyncIterator[_ResultT]) -> _ResultT:
    return await anext(items)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run until stopped, then let what is left be cancelled."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class _Behind(Generic[_AsyncT]):
    """A part of the asynchronous client, used by threads outside its event loop."""

    def __init__(self, loop: _Loop, part: _AsyncT) -> None:
        self._loop = loop
        self._async = part


def _waiting(
    method: Callable[Concatenate[_AsyncT, _Args], Coroutine[Any, Any, _ResultT]],
) -> Callable[Concatenate[_Behind[_AsyncT], _Args], _ResultT]:
    """The method of the same name that returns with the result."""

    def waiting(self: _Behind[_AsyncT], /, *args: _Args.args, **options: _Args.kwargs) -> _ResultT:
        return self._loop.run(method(self._async, *args, **options))

    update_wrapper(waiting, method)
    waiting.__qualname__ = method.__qualname__.removeprefix("Async")
    waiting.__module__ = __name__
    return waiting


class Client(_Behind[AsyncClient]):
    """Speech of a Kazeia server.

    `base_url` and `api_key` come from `KAZEIA_URL` and `KAZEIA_API_KEY` where they are not given;
    without either it is http://127.0.0.1:8080.  `timeout_s` is for connecting and short answers,
    `patience_s` for the next audio (of `synthesize`: all of it).  `max_buffered` bytes of audio
    are taken ahead of who asks for it.  `ssl_context` is for certificates of your own.  May be
    used by several threads at once; in another process, after a fork, it raises UsageError.
    Raises UsageError for what is no address.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        retry: Retry | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 600.0,
        max_buffered: int = MAX_BUFFERED,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        client = AsyncClient(
            base_url,
            api_key=api_key,
            retry=retry,
            timeout_s=timeout_s,
            patience_s=patience_s,
            max_buffered=max_buffered,
            ssl_context=ssl_context,
        )
        super().__init__(_Loop(), client)

    @property
    def base_url(self) -> str:
        """The address of the server, without a password."""
        return self._async.base_url

    synthesize = _waiting(AsyncClient.synthesize)
    voices = _waiting(AsyncClient.voices)
    health = _waiting(AsyncClient.health)
    wait_until_ready = _waiting(AsyncClient.wait_until_ready)

    def stream(self, text: Text, **options: Unpack[SpeechOptions]) -> SpeechStream:
        """Speak `text` while it is made: `with client.stream(...) as speech`.

        `text` may be an iterable of pieces that is still being written, such as the answer of a
        language model: the speech begins with its first words.  It is advanced in another thread.
        """
        return SpeechStream(self._loop, self._async.stream(text, **options))

    @contextmanager
    def session(self, **options: Unpack[SpeechOptions]) -> Iterator[Session]:
        """A connection for several utterances, with these options unless they have their own.

        Waits for a server that is loading.  Raises KazeiaError.
        """
        connecting = self._async._connected(options, ready=True)
        session = self._loop.run(connecting)
        try:
            yield Session(self._loop, session)
        finally:
            self._loop.run(self._async._release(session))

    def close(self) -> None:
        """End all connections; what is still being spoken is given up."""
        if self._loop.usable:
            try:
                self._loop.run(self._async.close())
            finally:
                self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpeechStream(_Behind[AsyncSpeechStream]):
    """Speech on its way; made by `Client.stream`.

    Iterating over it gives bytes, 16-bit PCM unless `response_format` says otherwise: of PCM
    always whole samples.  Use it in a `with` block, which opens it (returning when the first audio
    is there) and gives up what has not been spoken; or iterate to its end.
    Tries again until the first audio has come, never after.  `cancel` may be called from another
    thread.
    """

    open = _waiting(AsyncSpeechStream.open)
    cancel = _waiting(AsyncSpeechStream.cancel)
    read = _waiting(AsyncSpeechStream.read)

    def close(self) -> None:
        """Give up what has not been spoken."""
        if self._loop.usable:
            self._loop.run(self._async.close())

    @property
    def format(self) -> AudioFormat:
        """What the bytes are.

        Raises UsageError before the stream is open.
        """
        return self._async.format

    @property
    def voice(self) -> str | None:
        """The name of the voice that speaks; None: not known yet, or it has no name."""
        return self._async.voice

    @property
    def stats(self) -> SpeechStats | None:
        """How it went; None until the end has been read, and where it was given up."""
        return self._async.stats

    def play(self) -> None:
        """Play it while it comes, and return when all has been heard; PCM only.

        Raises PlaybackError, UsageError, and KazeiaError where the speech fails.
        """
        with self, Player(self.format) as player:
            for data in self:
                player.write(data)

    def __iter__(self) -> SpeechStream:
        return self

    def __next__(self) -> bytes:
        return self._loop.next(self._async)

    def __enter__(self) -> SpeechStream:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:  # a loop that was left by `break`
        self._loop.start(self._async.close)


class Session(_Behind[AsyncSession]):
    """Utterance after utterance on one connection; made by `Client.session`."""

    cancel = _waiting(AsyncSession.cancel)
    close = _waiting(AsyncSession.close)

    def utterance(self, **options: Unpack[SpeechOptions]) -> Utterance:
        """Begin an utterance, which takes text until it is finished or cancelled.

        It is spoken after those begun before it; `options` count for it alone, over those of the
        session.  Waits for the text of what `speak` began.  Raises UsageError while another still
        takes text, and KazeiaError.
        """
        return Utterance(self._loop, self._loop.run(self._async.utterance(**options)))

    def speak(self, text: Text, **options: Unpack[SpeechOptions]) -> Utterance:
        """Begin an utterance of this text, which may be an iterable that is still being written.

        What the iterable raises gives up the session's speech and is raised where the audio is
        taken.  It is advanced in another thread.
        """
        return Utterance(self._loop, self._loop.run(self._async.speak(text, **options)))


class Utterance(_Behind[AsyncUtterance], UtteranceFacts):
    """One utterance of a session: text goes in, audio comes out by iterating over it.

    The iteration gives bytes in the order of the speech (PCM: whole 16-bit samples) and ends with
    the utterance, also where that is cancelled; it raises KazeiaError where the utterance failed.
    Text may be pushed by one thread while another takes the audio.
    """

    def __init__(self, loop: _Loop, utterance: AsyncUtterance) -> None:
        _Behind.__init__(self, loop, utterance)
        UtteranceFacts.__init__(self, utterance._work)

    push_text = _waiting(AsyncUtterance.push_text)
    flush = _waiting(AsyncUtterance.flush)
    finish = _waiting(AsyncUtterance.finish)
    cancel = _waiting(AsyncUtterance.cancel)
    started = _waiting(AsyncUtterance.started)
    read = _waiting(AsyncUtterance.read)

    def events(self) -> Iterator[SpeechEvent]:
        """Everything that happens to the utterance, the audio included."""
        events = self._async.events()
        try:
            while True:
                yield self._loop.next(events)
        except StopIteration:
            return

    def __iter__(self) -> Utterance:
        return self

    def __next__(self) -> bytes:
        return self._loop.next(self._async)
