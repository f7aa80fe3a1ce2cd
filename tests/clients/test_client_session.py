"""Sessions: text in, audio out, interruption and reuse of one connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from client_tools import spoken
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until

from kazeia_client import (
    AsyncClient,
    Audio,
    AudioFormat,
    Busy,
    Cancelled,
    Client,
    ConnectionLost,
    Finished,
    InvalidRequest,
    ServerFailure,
    Session,
    Started,
    TextTimeout,
    TextTooLong,
    UnknownVoice,
    UsageError,
)
from kazeia_server.errors import EngineFailure


@pytest.fixture
def session(live: Live) -> Iterator[Session]:
    with Client(live.url) as client, client.session() as session:
        yield session


def test_text_in_pieces_audio_and_events_out(session: Session, voice: FakeVoice) -> None:
    utterance = session.utterance(voice="bert")
    for piece in ("Été", " à", " la mer", " 😀."):
        utterance.push_text(piece)
    assert utterance.stats is None
    utterance.finish()
    assert utterance.started() == AudioFormat("pcm", RATE)
    events = list(utterance.events())
    assert isinstance(events[0], Started)
    assert (events[0].format, events[0].voice) == (AudioFormat("pcm", RATE), "Bert")
    audio = [event.data for event in events if isinstance(event, Audio)]
    assert b"".join(audio) == spoken(voice, 3)
    assert isinstance(events[-1], Finished)
    assert events[-1].stats == utterance.stats
    assert utterance.is_over
    assert utterance.voice == "Bert"
    assert list(utterance) == []  # there is no more
    assert voice.texts[0].startswith("Été à la mer")


def test_speech_begins_before_the_text_ends(session: Session, voice: FakeVoice) -> None:
    utterance = session.utterance()
    utterance.push_text("One ")
    heard = next(utterance)
    utterance.push_text("two")
    utterance.finish()
    assert heard + utterance.read() == spoken(voice, 3)


def test_flush_speaks_what_there_is(session: Session, voice: FakeVoice) -> None:
    voice.n_chunks = 2
    utterance = session.utterance()
    utterance.push_text("First")
    utterance.flush()
    heard = b""
    while len(heard) < 2 * FRAME * 2:
        heard += next(utterance)
    utterance.push_text(" and second.")
    utterance.finish()
    utterance.read()
    assert voice.texts == ["First", "and second."]


def test_several_utterances_on_one_connection(session: Session, voice: FakeVoice) -> None:
    written = [session.speak(f"Text {n}.", seed=n) for n in range(4)]
    # Taken in another order than they are spoken in.
    assert [written[n].read() for n in (2, 0, 3, 1)] == [spoken(voice, 3)] * 4
    assert voice.texts == [f"Text {n}." for n in range(4)]
    assert [request.seed for request in voice.requests] == [0, 1, 2, 3]


def test_options_of_an_utterance_are_its_own(live: Live, voice: FakeVoice) -> None:
    with Client(live.url) as client, client.session(voice="bert", seed=5) as session:
        session.speak("One.").read()
        session.speak("Two.", seed=6, language="fr").read()
        session.speak("Three.").read()
    seen = [(r.voice, r.seed, r.language) for r in voice.requests]
    assert seen == [("Bert", 5, "auto"), ("Bert", 6, "french"), ("Bert", 5, "auto")]


@pytest.mark.parametrize("after_chunks", [0, 1, 4])
def test_cancel_and_speak_on(session: Session, voice: FakeVoice, after_chunks: int) -> None:
    # Nothing ends by itself: what is cancelled here goes on there until the server has heard of it.
    voice.n_chunks = None
    for round_ in range(3):
        utterance = session.speak("An endless text.")
        waiting = session.speak("Never begun.")
        for _ in range(after_chunks):
            next(utterance)
        session.cancel()
        assert list(utterance) == []  # not even what had arrived
        assert [type(event) for event in waiting.events()] == [Cancelled]
        assert utterance.stats is None
        after = session.speak("After it.")
        heard = next(after)
        while len(heard) < len(expected := spoken(voice, 2)):
            heard += next(after)
        assert heard.startswith(expected)
        session.cancel()
        until(lambda: voice.open_now == 0)
        assert "Never begun." not in voice.texts, round_


def test_cancelling_silences_what_had_already_come(session: Session, voice: FakeVoice) -> None:
    """The server is faster than the listener: all of the speech lies here, unheard."""
    utterance = session.speak("All of it.")
    next(utterance)
    until(lambda: utterance.is_over)
    utterance.cancel()
    assert list(utterance) == []
    assert utterance.stats is None
    assert session.speak("Next.").read() == spoken(voice, 3)


def test_cancelling_before_anything_was_sent(session: Session, voice: FakeVoice) -> None:
    for text in ("", "  ", "...", "\u3164", "!?"):  # nothing of which surely begins an utterance
        utterance = session.utterance()
        utterance.push_text(text)
        utterance.flush()
        utterance.cancel()
        assert list(utterance) == []
        utterance.push_text("passed over")
        utterance.finish()
        assert session.speak("Heard.").read() == spoken(voice, 3)
    session.cancel()  # nothing to cancel
    assert set(voice.texts) == {"Heard."}


def test_cancelling_what_is_over_leaves_the_next_alone(session: Session, voice: FakeVoice) -> None:
    first = session.speak("One.")
    first.read()
    second = session.speak("Two.")
    first.cancel()
    assert second.read() == spoken(voice, 3)


def test_held_back_text_is_spoken_with_the_rest(session: Session, voice: FakeVoice) -> None:
    utterance = session.utterance(clean=False)
    for piece in ("... ", "«", "Oui", "»"):
        utterance.push_text(piece)
    utterance.finish()
    utterance.read()
    assert "«Oui»" in voice.texts[0]
    assert session.speak("?!").read()  # nothing to say is 0.2 s of silence
    assert session.speak("And on.").read() == spoken(voice, 3)


def test_one_utterance_takes_text_at_a_time(session: Session, voice: FakeVoice) -> None:
    voice.n_chunks = None  # what comes after the end of the speech would be passed over
    first = session.utterance()
    with pytest.raises(UsageError, match=r"finish\(\) or cancel\(\)"):
        session.utterance()
    first.push_text("Text")
    first.finish()
    first.finish()
    with pytest.raises(UsageError, match="complete"):
        first.push_text(" too late")
    assert next(first)


def test_a_refused_option_costs_neither_session_nor_configuration(
    session: Session, voice: FakeVoice
) -> None:
    for _ in range(2):
        with pytest.raises(UnknownVoice, match="anna, Bert") as caught:
            session.utterance(voice="zorro")
        assert caught.value.status is None
        assert session.speak("On.", voice="bert").read() == spoken(voice, 3)
    assert {request.voice for request in voice.requests} == {"Bert"}


def test_a_refused_option_of_the_session_is_told_at_once(live: Live) -> None:
    with Client(live.url) as client:
        with pytest.raises(UnknownVoice):
            with client.session(voice="zorro"):
                raise AssertionError("not reached")


def test_a_failed_utterance_does_not_cost_the_session(session: Session, voice: FakeVoice) -> None:
    voice.fail_at, voice.error = 1, EngineFailure("the weights are gone")
    failed = session.utterance()
    failed.push_text("One two")
    heard = next(failed)
    assert len(heard) == FRAME * 2  # what came before is still there
    failed.push_text(" three")
    with pytest.raises(ServerFailure, match="weights") as caught:
        failed.read()
    assert caught.value.code == "engine_error"
    voice.fail_at = None
    # Its text was never declared complete: what is still pushed is passed over.
    failed.push_text(" four")
    assert session.speak("Next.").read() == spoken(voice, 3)
    assert session.speak("And next.").read() == spoken(voice, 3)


def test_a_text_that_is_too_long_does_not_cost_the_session(
    session: Session, voice: FakeVoice
) -> None:
    for how in (lambda u: u.finish(), lambda u: u.cancel(), lambda u: None):
        utterance = session.utterance()
        utterance.push_text("a" * 30_000)
        with pytest.raises(TextTooLong):
            utterance.read()
        utterance.push_text("more")
        how(utterance)
        assert session.speak("Next.").read() == spoken(voice, 3)


def test_too_many_waiting_utterances(session: Session, voice: FakeVoice) -> None:
    voice.n_chunks = None
    written = [session.speak(f"Text {n}.") for n in range(18)]
    with pytest.raises(Busy, match="16 utterances"):
        written[17].read()
    session.cancel()
    voice.n_chunks = 1
    assert session.speak("Next.").read() == spoken(voice, 1)


def test_an_empty_utterance_is_refused(session: Session, voice: FakeVoice) -> None:
    utterance = session.utterance()
    utterance.finish()
    with pytest.raises(InvalidRequest, match="without text"):
        utterance.read()
    assert session.speak("Next.").read() == spoken(voice, 3)


def test_text_that_stops_coming(voice: FakeVoice) -> None:
    voice.n_chunks = 1
    with serving(voice, text_timeout_s=0.2) as live, Client(live.url) as client:
        with client.session() as session:
            utterance = session.utterance()
            utterance.push_text("Unfinished ")
            with pytest.raises(TextTimeout):
                utterance.read()
            assert session.speak("Next.").read() == spoken(voice, 1)


def test_a_session_that_was_closed(live: Live, voice: FakeVoice) -> None:
    voice.n_chunks = None
    with Client(live.url) as client:
        with client.session() as session:
            utterance = session.speak("An endless text.")
            next(utterance)
        with pytest.raises(UsageError, match="closed"):
            utterance.read()
        with pytest.raises(UsageError, match="closed"):
            session.utterance()
        until(lambda: voice.open_now == 0)


def test_an_idle_session_says_why_it_ended(voice: FakeVoice) -> None:
    with serving(voice, idle_timeout_s=0.2) as live, Client(live.url) as client:
        with client.session() as session:
            session.speak("Hello.").read()
            until(lambda: session._async._protocol.ended is not None)
            with pytest.raises(Exception, match="idle for too long"):
                session.utterance()


def test_audio_that_nobody_takes_holds_up_the_server_only(voice: FakeVoice) -> None:
    """What is beyond the buffer stays with the server, which then drops the connection."""
    voice.n_chunks = 4000  # 15 MB

    async def main(max_buffered: int) -> bytes:
        async with AsyncClient(live.url, max_buffered=max_buffered) as client:
            async with client.session() as session:
                utterance = await session.speak("A long text.")
                await utterance.started()
                await asyncio.to_thread(until, lambda: voice.open_now == 0, 60)
                return await utterance.read()

    with serving(voice, send_timeout_s=1) as live:
        with pytest.raises(ConnectionLost):
            asyncio.run(main(100_000))
        until(lambda: voice.open_now == 0)
        voice.streams.clear()
        assert len(asyncio.run(main(64 << 20))) == 4000 * FRAME * 2


def test_barge_in_with_asyncio(live: Live, voice: FakeVoice) -> None:
    voice.n_chunks = None
    closed = asyncio.Event()

    async def model() -> AsyncIterator[str]:
        try:
            while True:
                yield "word "
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    async def main() -> None:
        async with AsyncClient(live.url) as client, client.session() as session:
            answer = await session.speak(model())
            heard = 0
            async for pcm in answer:
                heard += len(pcm)
                if heard > 3 * FRAME * 2:
                    await session.cancel()
            assert answer.stats is None
            await asyncio.wait_for(closed.wait(), 5)  # the model need not go on
            voice.n_chunks = 2
            assert await (await session.speak("Yes?")).read() == spoken(voice, 2)

    asyncio.run(main())
    until(lambda: voice.open_now == 0)


def test_a_text_that_fails_ends_the_utterance(session: Session, voice: FakeVoice) -> None:
    def text() -> Iterator[str]:
        yield "One "
        raise LookupError("no more words")

    with pytest.raises(LookupError, match="no more words"):
        session.speak(text()).read()
    assert session.speak("Next.").read() == spoken(voice, 3)


def test_one_thread_writes_while_another_listens(session: Session, voice: FakeVoice) -> None:
    voice.n_chunks = 10
    utterance = session.utterance()

    def write() -> None:
        for n in range(10):
            utterance.push_text(f"word{n} ")
        utterance.finish()

    writer = threading.Thread(target=write)
    writer.start()
    assert utterance.read() == spoken(voice, 10)
    writer.join(5)
    assert voice.texts == [" ".join(f"word{n}" for n in range(10))]


def test_a_full_buffer_does_not_keep_the_next_utterance_away(voice: FakeVoice) -> None:
    voice.n_chunks = 40

    async def main() -> tuple[bytes, bytes]:
        async with AsyncClient(live.url, max_buffered=1) as client:
            async with client.session() as session:
                first = await session.speak("One.")
                second = await session.speak("Two.")
                last = await second.read()
                return await first.read(), last

    with serving(voice) as live:
        assert asyncio.run(main()) == (spoken(voice, 40), spoken(voice, 40))


def test_what_nobody_takes_delays_no_answer(voice: FakeVoice) -> None:
    """Options are accepted, and the next utterance begins, behind audio that fills the buffer."""

    async def main() -> tuple[bytes, bytes]:
        async with AsyncClient(live.url, max_buffered=1, patience_s=20) as client:
            async with client.session() as session:
                first = await session.speak("One.")
                await asyncio.to_thread(until, lambda: first._work.buffered > 0)
                second = await session.speak("Two.", seed=2)
                await second.started()
                return await first.read(), await second.read()

    with serving(voice) as live:
        assert asyncio.run(main()) == (spoken(voice, 3), spoken(voice, 3, 1))
