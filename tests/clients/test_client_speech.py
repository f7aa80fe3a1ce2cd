"""Complete and streamed speech, synchronous and asynchronous, against a real server."""

from __future__ import annotations

import asyncio
import io
import threading
import wave
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from client_tools import spoken
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until

from kazeia_client import (
    AnswerTimeout,
    AsyncClient,
    AudioFormat,
    Client,
    InvalidRequest,
    KazeiaError,
    PlaybackError,
    TextTooLong,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
    Voice,
)
from kazeia_server.voices.load import load_voice

FRENCH = "Où est l'hôtel ? Ça coûte 12 €, « dès demain » – naïve cœur 😀."
DOUBLE = Path(__file__).parent / "sounddevice_double"


@pytest.fixture
def client(live: Live) -> Iterator[Client]:
    with Client(live.url) as client:
        yield client


def test_complete_speech_with_all_its_figures(client: Client, voice: FakeVoice) -> None:
    speech = client.synthesize(
        FRENCH, voice="bert", language="fr", seed=7, clean=False, split="none"
    )
    assert speech.pcm == spoken(voice, 3)
    assert speech.format == AudioFormat("wav", RATE)
    assert (speech.voice, speech.source) == ("Bert", "qwen3-tts")
    assert (speech.stats.ended, speech.stats.frames, speech.stats.chunks) == ("eos", 3, 3)
    assert speech.stats.audio_s == pytest.approx(3 * FRAME / RATE)
    assert speech.stats.rtf == pytest.approx(0.5)
    assert speech.stats.ttfb_s is not None
    assert not speech.stats.was_cut
    assert speech.request_id
    request = voice.requests[0]
    assert (request.text, request.language, request.seed) == (FRENCH, "french", 7)
    with wave.open(io.BytesIO(speech.wav)) as file:
        assert (file.getframerate(), file.getnframes()) == (RATE, 3 * FRAME)


def test_other_formats_and_files(client: Client, tmp_path: Path) -> None:
    pcm = client.synthesize("Hello.", response_format="pcm")
    assert pcm.wav == client.synthesize("Hello.").data
    mp3 = client.synthesize("Hello.", response_format="mp3", sample_rate=48_000)
    assert mp3.format == AudioFormat("mp3", 48_000)
    for wrong in (lambda: mp3.pcm, lambda: mp3.wav, mp3.play):
        with pytest.raises(UsageError, match="expected pcm or wav"):
            wrong()
    mp3.save(tmp_path / "a.mp3")
    assert (tmp_path / "a.mp3").read_bytes() == mp3.data


def test_a_stream_says_what_its_bytes_are(client: Client, voice: FakeVoice) -> None:
    stream = client.stream(FRENCH, voice="bert", clean=False, split="none")
    with pytest.raises(UsageError, match="once the stream is open"):
        _ = stream.format
    with stream as speech:
        assert speech.format == AudioFormat("pcm", RATE)
        assert speech.format.seconds(RATE * 2) == 1.0
        chunks = list(speech)
    assert [len(chunk) for chunk in chunks] == [FRAME * 2] * 3
    assert b"".join(chunks) == spoken(voice, 3)
    assert speech.stats is not None
    assert (speech.stats.ended, speech.stats.frames, speech.voice) == ("eos", 3, "Bert")
    assert voice.requests[0].text == FRENCH  # as a whole: not written word by word


def test_a_stream_gives_the_same_audio_as_complete_speech(client: Client) -> None:
    assert client.stream("The same.").read() == client.synthesize("The same.").pcm
    whole = client.synthesize("The same.", response_format="flac").data
    assert client.stream("The same.", response_format="flac").read() == whole


def test_chunks_come_while_speech_is_made(live: Live, voice: FakeVoice) -> None:
    voice.n_chunks = None
    with Client(live.url) as client, client.stream("An endless text.") as speech:
        assert sum(len(next(speech)) for _ in range(5)) > 0
    until(lambda: voice.open_now == 0)  # leaving the block ended it


def test_speech_begins_before_its_text_is_complete(client: Client, voice: FakeVoice) -> None:
    heard = threading.Event()

    def text() -> Iterator[str]:
        yield "One "
        assert heard.wait(10)  # only sound that came before this is complete lets it go on
        yield "two "
        yield "three"

    with client.stream(text()) as speech:
        audio = next(speech)
        heard.set()
        audio += speech.read()
    assert audio == spoken(voice, 3)
    assert voice.texts == ["One two three"]


async def words() -> AsyncIterator[str]:
    for word in ("Un ", "deux ", "très ", "naïf."):
        await asyncio.sleep(0)
        yield word


def test_asyncio(live: Live, voice: FakeVoice) -> None:
    async def main() -> None:
        async with AsyncClient(live.url) as client:
            speech = await client.synthesize(FRENCH, clean=False, split="none")
            assert speech.pcm == spoken(voice, 3)
            async with client.stream(words(), voice="anna") as stream:
                assert stream.format == AudioFormat("pcm", RATE)
                chunks = [chunk async for chunk in stream]
            assert b"".join(chunks) == spoken(voice, 3)
            assert stream.stats is not None
            assert stream.voice == "anna"
            assert await client.stream(iter(["a ", "b"])).read() == spoken(voice, 3)
            assert (await client.voices()).names == ("anna", "Bert")
            assert (await client.health()).is_ready
            await client.wait_until_ready()

    asyncio.run(main())
    assert voice.texts == [FRENCH, "Un deux très naïf.", "a b"]


def test_eight_streams_at_once_do_not_mix(voice: FakeVoice) -> None:
    with serving(voice, max_concurrent=8) as live:

        async def one(client: AsyncClient, n: int) -> tuple[int, bytes]:
            async with client.stream(f"Text number {n}.", max_frames=n + 1) as speech:
                return n, await speech.read()

        async def main() -> list[tuple[int, bytes]]:
            async with AsyncClient(live.url) as client:
                return await asyncio.gather(*(one(client, n) for n in range(8)))

        results = asyncio.run(main())
    assert [n for n, _ in results] == list(range(8))
    assert all(audio == spoken(voice, 3) for _, audio in results)
    assert sorted(voice.texts) == [f"Text number {n}." for n in range(8)]


def test_threads_share_a_client(client: Client, voice: FakeVoice) -> None:
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(client.stream("Hello.").read()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [spoken(voice, 3)] * 4


def test_a_slow_consumer_gets_everything_and_holds_up_nobody(voice: FakeVoice) -> None:
    voice.n_chunks = 400  # more than the buffers of the sockets take
    with serving(voice, send_timeout_s=1, max_concurrent=2) as live, Client(live.url) as client:
        with client.stream("A long text.") as slow:
            first = next(slow)
            until(lambda: voice.streams[0].ended is not None, 30)  # it does not wait for us
            assert client.stream("Another.").read()
            assert first + slow.read() == spoken(voice, 400)


def test_a_very_long_text(client: Client, voice: FakeVoice) -> None:
    text = ("Ein Wort und noch eins. " * 800).strip()  # 19,199 characters: two messages
    client.stream(text, clean=False, split="none").read()
    assert voice.texts == [text]
    for ask in (
        lambda: client.synthesize("a" * 20_001),
        lambda: client.stream("a" * 300_000).read(),
        lambda: client.stream(iter(["words " * 1000] * 10)).read(),
    ):
        with pytest.raises(TextTooLong, match="at most 20000"):
            ask()


@pytest.mark.parametrize("text", ["", " \n", "\u200b"])
def test_an_empty_text(client: Client, text: str) -> None:
    for ask in (
        lambda: client.synthesize(text),
        lambda: client.stream(text).read(),
        lambda: client.stream(iter([text])).read(),
    ):
        with pytest.raises(InvalidRequest, match="visible character") as caught:
            ask()
        assert (caught.value.code, caught.value.param) == ("invalid_request", "text")
    with pytest.raises(InvalidRequest):
        client.stream(iter([])).read()


def test_what_the_server_refuses_says_why(client: Client, voice: FakeVoice) -> None:
    for ask in (
        lambda **options: client.synthesize("Hi.", **options),
        lambda **options: client.stream("Hi.", **options).read(),
    ):
        with pytest.raises(UnknownVoice, match="'zorro'; fake has anna, Bert") as caught:
            ask(voice="zorro")
        assert (caught.value.code, caught.value.param) == ("unknown_voice", "voice")
        assert caught.value.status in (400, None)
        with pytest.raises(UnknownLanguage, match="auto, english, french"):
            ask(language="klingon")
        with pytest.raises(InvalidRequest, match="has no field 'voise'"):
            ask(voise="anna")
        with pytest.raises(InvalidRequest, match="speed"):
            ask(speed=9.0)
        with pytest.raises(UsageError, match="seed cannot be sent"):
            ask(seed=object())
    assert voice.requests == []


def test_what_is_no_text(client: Client) -> None:
    for text in ("half \ud83d", 3, None):
        with pytest.raises(UsageError, match=r"surrogate pair at position 5|expected text"):
            client.synthesize(text)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"surrogate pair at position 5|expected text"):
            client.stream(text).read()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected text, got int"):
        client.stream(iter([1])).read()  # type: ignore[list-item]


def test_what_the_text_raises_is_raised(client: Client, voice: FakeVoice) -> None:
    class ModelError(Exception):
        pass

    def text(n_words: int) -> Iterator[str]:
        for n in range(n_words):
            yield f"word{n} "
        raise ModelError("the model broke")

    for n_words in (0, 2):
        with pytest.raises(ModelError, match="the model broke"):
            client.stream(text(n_words)).read()
    until(lambda: voice.open_now == 0)


def test_voices_and_health(client: Client) -> None:
    voices = client.voices()
    assert voices.voices == (Voice("anna", True), Voice("Bert", False))
    assert (voices.languages, voices.sample_rate) == (("auto", "english", "french"), RATE)
    assert (voices.model, voices.source, voices.follows_instructions) == ("fake", "qwen3-tts", True)
    health = client.health()
    assert (health.state, health.running, health.waiting, health.failure) == ("ready", 0, 0, None)


def test_a_keyboard_interrupt_ends_the_speech(live: Live, voice: FakeVoice) -> None:
    voice.n_chunks = None
    with pytest.raises(KeyboardInterrupt), Client(live.url) as client:
        with client.stream("An endless text.") as speech:
            for _ in speech:
                raise KeyboardInterrupt
    until(lambda: voice.open_now == 0)


def test_a_loop_that_is_left_ends_the_speech(client: Client, voice: FakeVoice) -> None:
    voice.n_chunks = None
    for _ in client.stream("An endless text."):
        break
    until(lambda: voice.open_now == 0)


def test_cancelling_from_elsewhere_ends_the_iteration(client: Client, voice: FakeVoice) -> None:
    voice.n_chunks = None
    with client.stream("An endless text.") as speech:
        next(speech)
        threading.Timer(0.05, speech.cancel).start()
        for _ in speech:
            pass
        assert speech.stats is None
    until(lambda: voice.open_now == 0)


def test_a_closed_stream_gives_nothing_more(client: Client, voice: FakeVoice) -> None:
    with client.stream("Hello.") as speech:
        next(speech)
    assert list(speech) == []
    with client.stream("Hello.") as speech:
        next(speech)
        speech.cancel()
        assert list(speech) == []
    unopened = client.stream("Hello.")
    unopened.close()
    with pytest.raises(UsageError, match="the stream is closed"):
        unopened.open()


def test_a_cancelled_task_ends_the_speech(live: Live, voice: FakeVoice) -> None:
    voice.n_chunks = None

    async def main() -> None:
        async with AsyncClient(live.url) as client:
            heard = asyncio.Event()

            async def listen() -> None:
                async for _ in client.stream("An endless text."):
                    heard.set()

            task = asyncio.create_task(listen())
            await heard.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, lambda: voice.open_now == 0)

    asyncio.run(main())


def test_a_server_that_says_nothing(live: Live, voice: FakeVoice) -> None:
    voice.gate = threading.Event()
    with Client(live.url, patience_s=0.2) as client:
        with pytest.raises(AnswerTimeout):
            client.synthesize("Hi.")
        with pytest.raises(AnswerTimeout, match=r"no audio came for 0\.2 s"):
            client.stream("Hi.").read()
    voice.gate.set()


def test_a_closed_client_says_so(live: Live, voice: FakeVoice) -> None:
    voice.n_chunks = None  # not all of it has come when the client is closed
    client = Client(live.url)
    client.close()
    client.close()
    for ask in (client.health, client.stream("Hi.").read, lambda: client.synthesize("Hi.")):
        with pytest.raises(UsageError, match="the client is closed"):
            ask()

    async def main() -> None:
        client = AsyncClient(live.url)
        stream = client.stream("Hi.")
        await stream.open()
        await client.close()
        with pytest.raises(UsageError, match="closed"):
            await client.health()
        with pytest.raises(UsageError, match="closed"):
            while True:
                await anext(stream)

    asyncio.run(main())


def test_what_a_client_made_outlives_its_name(live: Live, voice: FakeVoice) -> None:
    assert Client(live.url).stream("Hello.").read() == spoken(voice, 3)
    stream = Client(live.url).stream("Hello.")
    thread = stream._loop._thread
    stream.read()
    del stream
    thread.join(10)
    assert not thread.is_alive()  # and ends with the last of it


def test_closing_a_client_that_somebody_waits_for(live: Live, voice: FakeVoice) -> None:
    voice.gate = threading.Event()
    client = Client(live.url)
    caught: list[Exception] = []

    def ask() -> None:
        try:
            client.synthesize("Hello.")
        except KazeiaError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: voice.open_now == 1)
    client.close()
    thread.join(10)
    assert len(caught) == 1
    voice.gate.set()
    until(lambda: voice.open_now == 0)


def test_the_built_in_voice_speaks_what_is_being_written() -> None:
    with serving(load=load_voice) as live, Client(live.url) as client:
        assert client.voices().source == "built-in"
        with client.stream(iter(["Hello ", "from the ", "client."])) as speech:
            pcm = speech.read()
        assert speech.stats is not None
        assert speech.stats.ended == "eos"
        assert 0.5 < speech.format.seconds(len(pcm)) < 10
        assert max(abs(sample) for sample in memoryview(pcm).cast("h")) > 1000


# ---- the sound card ------------------------------------------------------------


def test_playing(
    client: Client, voice: FakeVoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = tmp_path / "played"
    monkeypatch.setenv("SOUNDDEVICE_DOUBLE", str(played))
    monkeypatch.syspath_prepend(str(DOUBLE))
    monkeypatch.delitem(__import__("sys").modules, "sounddevice", raising=False)
    client.synthesize("Hello.").play()
    client.stream("Hello.").play()
    asyncio.run(_play(client.base_url))
    assert played.read_bytes() == 3 * spoken(voice, 3)
    assert played.with_suffix(".calls").read_text().split() == 3 * [
        "24000",
        "start",
        "stop",
        "close",
    ]


async def _play(url: str) -> None:
    async with AsyncClient(url) as client:
        await client.stream("Hello.").play()


def test_a_failing_sound_card_ends_the_speech(
    client: Client, voice: FakeVoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # with no program that plays
    monkeypatch.syspath_prepend(str(DOUBLE))
    monkeypatch.delitem(__import__("sys").modules, "sounddevice", raising=False)
    voice.n_chunks = None
    with pytest.raises(PlaybackError, match="no default output device"):
        client.stream("Hello.").play()
    until(lambda: voice.open_now == 0)


def test_without_sounddevice_playing_says_what_is_missing(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "sounddevice", None)
    with pytest.raises(PlaybackError, match="pip install sounddevice"):
        client.synthesize("Hello.").play()
    with pytest.raises(PlaybackError, match="pip install sounddevice"):
        client.stream("Hello.").play()
    with pytest.raises(UsageError, match="mp3 cannot be played"):
        client.stream("Hello.", response_format="mp3").play()


def test_errors_are_one_family() -> None:
    assert issubclass(UnknownVoice, InvalidRequest)
    assert issubclass(InvalidRequest, KazeiaError)
    assert issubclass(UsageError, ValueError)
