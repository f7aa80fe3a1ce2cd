"""The client for asyncio."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from kazeia_client.address import Address
from kazeia_client.async_session import AsyncSession, AsyncUtterance
from kazeia_client.connecting import Link, http_errors
from kazeia_client.deadlines import within
from kazeia_client.errors import (
    AnswerTimeout,
    ConnectionLost,
    KazeiaError,
    UnexpectedAnswer,
    UsageError,
    error_of_answer,
)
from kazeia_client.foreign import UNUSABLE, parsed
from kazeia_client.formats import AudioFormat
from kazeia_client.options import SpeechOptions, checked_text, given
from kazeia_client.playback import Player
from kazeia_client.retry import Retry, RetryPlan, checked_seconds
from kazeia_client.speech import Speech, SpeechStats
from kazeia_client.status import Health, Voices
from kazeia_client.text_source import Text, TextSource

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AsyncClient", "AsyncSpeechStream"]

MAX_BUFFERED = 64 << 20  # bytes: 23 minutes of speech


class AsyncClient:
    """Speech of a Kazeia server, for asyncio.

    `base_url` and `api_key` come from `KAZEIA_URL` and `KAZEIA_API_KEY` where they are not given;
    without either it is http://127.0.0.1:8080.  `timeout_s` is for connecting and short answers,
    `patience_s` for the next audio (of `synthesize`: all of it).  `max_buffered` bytes of audio
    are taken ahead of who asks for it.  `ssl_context` is for certificates of your own.
    One client serves any number of tasks of one event loop.  Raises UsageError for what is no
    address.
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
        for name, seconds in (("timeout_s", timeout_s), ("patience_s", patience_s)):
            if not checked_seconds(name, seconds):
                raise UsageError(f"expected {name} above 0, got {seconds!r}")
        if not max_buffered >= 0:
            raise UsageError(f"expected max_buffered of at least 0 bytes, got {max_buffered!r}")
        self._link = Link(Address.of(base_url, api_key), timeout_s, ssl_context)
        self._retry = retry or Retry()
        self._patience_s = patience_s
        self._max_buffered = max_buffered
        self._http: httpx.AsyncClient | None = None
        self._sessions: set[AsyncSession] = set()
        self._closing: set[asyncio.Task[None]] = set()  # streams that nobody holds any longer
        self._closed = False

    @property
    def base_url(self) -> str:
        """The address of the server, without a password."""
        return self._link.address.shown

    async def synthesize(self, text: str, **options: Unpack[SpeechOptions]) -> Speech:
        """Speak `text`, and return when all of it is there.

        A WAV unless `response_format` says otherwise.  Raises KazeiaError.
        """
        body = {"response_format": "wav", **given(options), "text": checked_text(text)}
        answer = await self._request("POST", "/synthesize", {**body, "stream": False})
        format = AudioFormat.of_headers(answer.headers)
        try:
            format.check_whole(answer.content)
        except UsageError as error:
            raise UnexpectedAnswer(f"the audio ends within a sample: {error}") from None
        return Speech(
            data=answer.content,
            format=format,
            stats=SpeechStats.of_headers(answer.headers),
            voice=answer.headers.get("x-kazeia-voice") or None,
            source=answer.headers.get("x-kazeia-voice-source", ""),
            request_id=answer.headers.get("x-request-id"),
        )

    def stream(self, text: Text, **options: Unpack[SpeechOptions]) -> AsyncSpeechStream:
        """Speak `text` while it is made: `async with client.stream(...) as speech`.

        `text` may be an iterable of pieces, asynchronous or not, that is still being written: the
        speech begins with its first words.  A plain iterable is advanced in another thread.
        """
        return AsyncSpeechStream(self, text, options)

    @asynccontextmanager
    async def session(self, **options: Unpack[SpeechOptions]) -> AsyncIterator[AsyncSession]:
        """A connection for several utterances, with these options unless they have their own.

        Waits for a server that is loading.  Raises KazeiaError.
        """
        session = await self._connected(options, ready=True)
        try:
            yield session
        finally:
            await self._release(session)

    async def voices(self) -> Voices:
        """The voices and languages there are.

        Raises KazeiaError.
        """
        return Voices.of_answer(_json(await self._request("GET", "/v1/voices")))

    async def health(self) -> Health:
        """The state of the server; needs no key.

        Raises KazeiaError.
        """
        return Health.of_answer(_json(await self._request("GET", "/health")))

    async def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Return when speech can be asked for.

        Raises what stood in the way after `timeout_s` seconds of waiting, or at once what no
        waiting can change.
        """
        await self._request("GET", "/readyz", retry=replace(self._retry, budget_s=timeout_s))

    async def close(self) -> None:
        """End all connections; what is still being spoken is given up."""
        self._closed = True
        for session in list(self._sessions):
            await self._release(session)
        if self._closing:
            await asyncio.wait(self._closing)
        if self._http is not None:
            await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, retry: Retry | None = None
    ) -> httpx.Response:
        """A complete answer with a status of success."""
        plan = RetryPlan(retry or self._retry)
        while True:
            try:
                return await self._request_once(method, path, body)
            except KazeiaError as error:
                await plan.wait_after(error)

    async def _request_once(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> httpx.Response:
        self._check_open()
        if self._http is None:
            self._http = self._link.http()
        patience_s = self._patience_s if body is not None else self._link.timeout_s
        timeout = httpx.Timeout(self._link.timeout_s, read=patience_s, pool=None)
        request = self._http.build_request(method, path, json=body, timeout=timeout)
        # httpx counts from the last byte: an answer that trickles in would never be late.
        answer = await within(
            self._link.timeout_s + patience_s,
            self._answer(self._http, request),
            AnswerTimeout(f"{self.base_url} sent no complete answer within {patience_s:g} s"),
        )
        if not answer.is_success:
            raise error_of_answer(answer.status_code, answer.headers, answer.content)
        return answer

    async def _answer(self, http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        with http_errors(self._link.address):
            answer = await http.send(request, stream=True)
            try:
                await answer.aread()
            except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
                raise ConnectionLost(
                    f"{self.base_url} broke off its answer: {error}", begun=True
                ) from error
            finally:
                await answer.aclose()
        return answer

    async def _connected(
        self, options: SpeechOptions, *, ready: bool, plan: RetryPlan | None = None
    ) -> AsyncSession:
        """A session that is open; `ready`: only once the server has its voice."""
        plan = plan or RetryPlan(self._retry)
        while True:
            self._check_open()
            session = AsyncSession(
                self._link, options, patience_s=self._patience_s, max_buffered=self._max_buffered
            )
            self._sessions.add(session)
            try:
                if ready:
                    await self._request_once("GET", "/readyz")
                await session.connect()
                return session
            except KazeiaError as error:
                await self._release(session)
                await plan.wait_after(error)
            except BaseException:
                await self._release(session)
                raise

    async def _release(self, session: AsyncSession) -> None:
        self._sessions.discard(session)
        await session.close()

    async def _give_up(self, session: AsyncSession | None, source: TextSource | None) -> None:
        if session is not None:
            await self._release(session)
        if source is not None:
            await source.close()

    def _start_giving_up(self, session: AsyncSession | None, source: TextSource | None) -> None:
        task = asyncio.create_task(self._give_up(session, source))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the client is closed")


class AsyncSpeechStream:
    """Speech on its way; made by `AsyncClient.stream`.

    Iterating over it gives bytes, 16-bit PCM unless `response_format` says otherwise: of PCM
    always whole samples.  Use it in an `async with` block, which opens it (returning when the
    first audio is there) and gives up what has not been spoken; or iterate to its end.
    Tries again until the first audio has come, never after.
    """

    def __init__(self, client: AsyncClient, text: Text, options: SpeechOptions) -> None:
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client = client
        self._text = checked_text(text) if isinstance(text, str) else text
        self._options: SpeechOptions = options
        if isinstance(text, str) and options.get("text_mode") is None:
            # A complete text is read as a whole, as `synthesize` has it read.
            self._options = {**options, "text_mode": "whole"}
        self._source: TextSource | None = None
        self._session: AsyncSession | None = None
        self._utterance: AsyncUtterance | None = None

    async def open(self) -> None:
        """Return when the first audio is there.

        Raises KazeiaError, and what an iterable of the text raises.
        """
        if self._utterance is not None:
            return
        if self._closed:
            raise UsageError("the stream is closed: expected client.stream() to be called again")
        plan = RetryPlan(self._client._retry)
        self._loop = asyncio.get_running_loop()
        try:
            self._source = TextSource(self._text)
            while self._utterance is None:
                self._session = await self._client._connected(self._options, ready=False, plan=plan)
                try:
                    self._utterance = await self._begun(self._session, self._source)
                except KazeiaError as error:
                    await self._client._release(self._session)
                    await plan.wait_after(error)
            self._source.forget()  # nothing is tried again from here on
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Give up what has not been spoken."""
        self._closed = True
        await self._client._give_up(self._session, self._source)

    async def cancel(self) -> None:
        """Be silent: nothing more comes."""
        if self._utterance is not None:
            await self._utterance.cancel()
        await self.close()

    @property
    def format(self) -> AudioFormat:
        """What the bytes are.

        Raises UsageError before the stream is open.
        """
        found = self._utterance.format if self._utterance is not None else None
        if found is None:
            raise UsageError("the format is known once the stream is open")
        return found

    @property
    def voice(self) -> str | None:
        """The name of the voice that speaks; None: not known yet, or it has no name."""
        return self._utterance.voice if self._utterance is not None else None

    @property
    def stats(self) -> SpeechStats | None:
        """How it went; None until the end has been read, and where it was given up."""
        return self._utterance.stats if self._utterance is not None else None

    async def read(self) -> bytes:
        """All audio that has not been taken yet."""
        return b"".join([data async for data in self])

    async def play(self) -> None:
        """Play it while it comes, and return when all has been heard; PCM only.

        Raises PlaybackError, UsageError, and KazeiaError where the speech fails.
        """
        async with self:
            player = await asyncio.to_thread(Player, self.format)
            try:
                async for data in self:
                    await asyncio.to_thread(player.write, data)
                await asyncio.to_thread(player.close)
            except BaseException:
                player.abort()
                raise

    def __aiter__(self) -> AsyncSpeechStream:
        return self

    async def __anext__(self) -> bytes:
        if self._closed and self._utterance is not None:
            raise StopAsyncIteration
        await self.open()
        assert self._utterance is not None
        try:
            return await anext(self._utterance)
        except BaseException:
            await self.close()
            raise

    async def __aenter__(self) -> AsyncSpeechStream:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:  # a loop that was left by `break`
        if self._closed or self._loop is None or self._loop.is_closed():
            return
        client, session, source = self._client, self._session, self._source
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(client._start_giving_up, session, source)

    async def _begun(self, session: AsyncSession, source: TextSource) -> AsyncUtterance:
        utterance = await session.utterance()
        session._feed(utterance, source, own=False)
        await utterance.started()
        return utterance


def _json(answer: httpx.Response) -> object:
    try:
        return parsed(answer.content)
    except UNUSABLE:
        raise UnexpectedAnswer(
            f"expected JSON, got {answer.headers.get('content-type', 'an answer without a type')}"
        ) from None
