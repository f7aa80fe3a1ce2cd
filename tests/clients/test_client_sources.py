"""Texts that break off or never end, streams that nobody holds, and processes that fork."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import multiprocessing.connection
import os
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from fake_voice import FakeVoice
from live import Live, serving, until

from kazeia_client import AsyncClient, Client, KazeiaError, Retry, UsageError
from kazeia_client.text_source import TextSource

NEVER = Retry(budget_s=0)
ODD = (SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)


@pytest.fixture
def live() -> Iterator[Live]:
    with serving(FakeVoice(n_chunks=3)) as live:
        yield live


# ---- sources that break off ----------------------------------------------------------


@pytest.mark.parametrize("error", ODD)
@pytest.mark.parametrize("use", ["stream", "speak"])
def test_whatever_ends_a_source_ends_the_utterance(
    live: Live, error: type[BaseException], use: str
) -> None:
    def pieces() -> Iterator[str]:
        yield "Some "
        raise error("enough")

    with Client(live.url, retry=NEVER, patience_s=120) as client:
        with pytest.raises(KazeiaError, match=f"the text broke off: {error.__name__}") as caught:
            if use == "stream":
                client.stream(pieces()).read()
            else:
                with client.session() as session:
                    session.speak(pieces()).read()
        assert isinstance(caught.value.__cause__, error)
        assert client.stream("And on.").read()  # the client has not suffered


@pytest.mark.parametrize("error", ODD)
def test_whatever_ends_an_asynchronous_source_ends_the_utterance(
    live: Live, error: type[BaseException]
) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "Some "
        raise error("enough")

    async def main() -> None:
        async with AsyncClient(live.url, retry=NEVER, patience_s=120) as client:
            with pytest.raises(KazeiaError, match=f"the text broke off: {error.__name__}"):
                await client.stream(pieces()).read()
            assert await client.stream("And on.").read()

    asyncio.run(main())


# ---- sources that never end ----------------------------------------------------------


def counted(drawn: list[int]) -> Iterator[str]:
    while True:
        drawn[0] += 1
        yield "word "


async def counted_too(drawn: list[int]) -> AsyncIterator[str]:
    for piece in counted(drawn):
        yield piece
        await asyncio.sleep(0)


@pytest.mark.parametrize("endless", [counted, counted_too])
def test_an_endless_source_is_drawn_as_it_is_taken(endless: Callable[[list[int]], object]) -> None:
    async def settled(drawn: list[int]) -> int:
        """How many were drawn, once no more are."""
        before = -1
        while drawn[0] != before:
            before = drawn[0]
            await asyncio.sleep(0.2)
        return before

    async def main() -> None:
        drawn = [0]
        source = TextSource(endless(drawn))  # type: ignore[arg-type]
        assert await settled(drawn) <= 200
        pieces = source.pieces()
        for _ in range(1000):
            await anext(pieces)
        assert 1000 <= await settled(drawn) <= 1200
        assert len(source._pieces) >= 1000  # for another try
        source.forget()
        for _ in range(1000):
            await anext(pieces)
        assert await settled(drawn) <= 2200
        assert len(source._pieces) <= 100
        await source.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_another_try_begins_at_the_beginning() -> None:
    async def main() -> None:
        source = TextSource(iter(["a", "b", "c"]))
        assert [piece async for piece in source.pieces()] == ["a", "b", "c"]
        assert [piece async for piece in source.pieces()] == ["a", "b", "c"]
        await source.close()

    asyncio.run(main())


def test_a_stream_keeps_no_text_once_it_is_heard(live: Live) -> None:
    async def main() -> None:
        async with AsyncClient(live.url, retry=NEVER) as client:
            async with client.stream(iter(["Some ", "words."])) as speech:
                await speech.read()
                assert speech._source is not None
                assert speech._source._pieces == []

    asyncio.run(main())


# ---- streams that nobody holds ---------------------------------------------------------


def test_a_stream_left_by_break_is_given_up() -> None:
    voice = FakeVoice(n_chunks=None)

    async def main(live: Live) -> None:
        async with AsyncClient(live.url, retry=NEVER) as client:
            for _ in range(3):
                async for _data in client.stream("An endless text."):
                    break
            gc.collect()
            await asyncio.to_thread(
                until, lambda: not client._sessions and live.service.running == 0
            )
            assert voice.open_now == 0

    with serving(voice) as live:
        asyncio.run(asyncio.wait_for(main(live), 30))


@pytest.mark.filterwarnings(  # what such a program is told of its open connection
    "ignore:Exception ignored in. <(socket|function _Selector)"
    ":pytest.PytestUnraisableExceptionWarning"
)
def test_a_stream_may_outlive_its_loop() -> None:
    async def main(live: Live) -> object:
        client = AsyncClient(live.url, retry=NEVER)
        stream = client.stream("Hello.")
        await anext(stream)
        return stream

    with serving(FakeVoice(n_chunks=None)) as live:
        stream = asyncio.run(main(live))
        del stream
        gc.collect()  # pytest makes an error of what __del__ raises


# ---- a fork ----------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
def test_a_client_says_that_it_cannot_be_used_after_a_fork(live: Live) -> None:
    def use(client: Client, sending: multiprocessing.connection.Connection) -> None:
        try:
            client.health()
        except UsageError as error:
            sending.send(str(error))
        client.close()
        sending.send("closed")

    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    with Client(live.url, retry=NEVER) as client:
        child = context.Process(target=use, args=(client, sending))
        child.start()
        try:
            assert receiving.poll(20), "the child hangs"
            assert "made before a fork" in receiving.recv()
            assert receiving.poll(20), "the child hangs in close()"
            assert receiving.recv() == "closed"
        finally:
            child.kill()
            child.join(5)
        assert client.health().is_ready  # that of the parent goes on


def test_how_much_is_taken_ahead_is_chosen() -> None:
    """As for AsyncClient: a server whose audio nobody takes has to wait, and gives up."""
    voice = FakeVoice(n_chunks=None)
    with serving(voice, send_timeout_s=1) as live:
        with Client(live.url, retry=NEVER, max_buffered=1) as client:
            with client.stream("An endless text.") as speech:
                next(speech)
                until(lambda: voice.open_now == 0, seconds=30)
