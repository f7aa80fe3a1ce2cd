"""Wyoming as its users speak it: the library's client, and Home Assistant's way of using it.

Home Assistant keeps the first `info` it gets, passes over events it does not know (`error` among
them), takes the format from `audio-start`, and ends on `audio-stop` (one-shot) or on
`synthesize-stopped` (streaming), or when the connection does.
"""

from __future__ import annotations

import asyncio
import io
import threading
import wave
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from fake_voice import FRAME, FakeVoice
from live import Live, serving, until
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient, AsyncTcpClient
from wyoming.info import Describe, Info, TtsProgram
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from kazeia_server.settings import Settings
from kazeia_server.voices.load import load_voice

DEADLINE_S = 20.0
SENTENCES = (
    "The kitchen light is on, and so is the lamp in the hall that nobody ever turns off. ",
    "The front door is closed and locked, the garage is not, and the window upstairs is open. ",
    "Shall I close the garage for you, or do you want to leave it as it is for the night? ",
)


def wyoming_port(live: Live) -> int:
    port: int = live.server.config.app.state.wyoming.port  # type: ignore[union-attr]
    return port


class HomeAssistant:
    """How Home Assistant's Wyoming integration talks to a text-to-speech server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.program: TtsProgram | None = None
        self.attempts = 0
        self.refused = asyncio.Event()  # more than once

    def connection(self) -> AsyncTcpClient:
        return AsyncTcpClient("127.0.0.1", self.port)

    async def set_up(self, wait_s: float = 0.1) -> None:
        """Ask for `info`, again and again; the first one counts."""
        while self.program is None:
            self.attempts += 1
            try:
                info = await asyncio.wait_for(self._describe(), 1.0)
            except (asyncio.TimeoutError, OSError):
                info = None
            if info is None:
                if self.attempts > 1:
                    self.refused.set()
                await asyncio.sleep(wait_s)
            else:
                self.program = next(program for program in info.tts if program.installed)

    async def _describe(self) -> Info | None:
        async with self.connection() as client:
            await client.write_event(Describe().event())
            while (event := await client.read_event()) is not None:
                if Info.is_type(event.type):
                    return Info.from_event(event)
        return None

    def voices(self, language: str) -> list[str]:
        assert self.program is not None
        return [v.name for v in self.program.voices if v.installed and language in v.languages]

    async def speak(self, text: str, voice: str | None) -> bytes | None:
        """One-shot: the PCM once `audio-stop` has come, or None when it failed."""
        pcm = b""
        async with self.connection() as client:
            await client.write_event(Synthesize(text=text, voice=named(voice)).event())
            while (event := await client.read_event()) is not None:
                if AudioChunk.is_type(event.type):
                    pcm += AudioChunk.from_event(event).audio
                elif AudioStop.is_type(event.type):
                    return pcm
        return None

    async def stream(
        self, message: AsyncIterator[str], voice: str | None
    ) -> AsyncGenerator[bytes, None]:
        """Streaming: PCM while `message` is still coming."""
        async with self.connection() as client:
            await client.write_event(SynthesizeStart(voice=named(voice)).event())
            writing = asyncio.create_task(self._write(client, message, voice))
            try:
                started = False
                while (event := await client.read_event()) is not None:
                    if AudioStart.is_type(event.type):
                        assert started or AudioStart.from_event(event).rate == 24_000
                        started = True
                    elif AudioChunk.is_type(event.type):
                        assert started
                        yield AudioChunk.from_event(event).audio
                    elif SynthesizeStopped.is_type(event.type):
                        break
                else:
                    raise ConnectionError("the connection was lost")
                await writing
            finally:
                writing.cancel()

    @staticmethod
    async def _write(client: AsyncClient, message: AsyncIterator[str], voice: str | None) -> None:
        whole = ""
        async for text in message:
            await client.write_event(SynthesizeChunk(text=text).event())
            whole += text
        await client.write_event(Synthesize(text=whole, voice=named(voice)).event())
        await client.write_event(SynthesizeStop().event())


def named(voice: str | None) -> SynthesizeVoice | None:
    return SynthesizeVoice(name=voice) if voice is not None else None


async def spelled(text: str, size: int = 3) -> AsyncIterator[str]:
    """A text as a language model writes it."""
    for start in range(0, len(text), size):
        yield text[start : start + size]
        await asyncio.sleep(0)


def pcm_of(wav: bytes) -> bytes:
    with wave.open(io.BytesIO(wav)) as reader:
        assert (reader.getframerate(), reader.getsampwidth(), reader.getnchannels()) == (
            24_000,
            2,
            1,
        )
        return reader.readframes(reader.getnframes())


def over_http(live: Live, text: str, **fields: object) -> bytes:
    response = live.post({"text": text, **fields})
    assert response.status_code == 200, response.text
    return pcm_of(response.content)


def test_the_library_s_client_over_its_address() -> None:
    async def talk(port: int) -> None:
        async with AsyncClient.from_uri(f"tcp://127.0.0.1:{port}", 5, 5) as client:
            await client.write_event(Ping(text="hello").event())
            event = await client.read_event()
            assert event is not None
            assert Pong.from_event(event).text == "hello"
            await client.write_event(Describe().event())
            event = await client.read_event()
            assert event is not None
            assert Info.from_event(event).tts[0].supports_synthesize_streaming

    with serving(FakeVoice(), wyoming_port=0) as live:
        asyncio.run(asyncio.wait_for(talk(wyoming_port(live)), DEADLINE_S))


def test_home_assistant_that_starts_before_the_voice_finds_it_later() -> None:
    loaded = threading.Event()

    def load(_: Settings) -> FakeVoice:
        loaded.wait(30)
        return FakeVoice(n_chunks=2)

    async def boot(live: Live) -> None:
        home = HomeAssistant(wyoming_port(live))
        setting_up = asyncio.create_task(home.set_up())
        await home.refused.wait()
        loaded.set()
        await setting_up
        assert home.voices("fr") == ["anna", "Bert"]
        assert await home.speak("Hello.", home.voices("en")[1])

    with serving(load=load, ready=False, wyoming_port=0) as live:
        asyncio.run(asyncio.wait_for(boot(live), DEADLINE_S))


@pytest.mark.parametrize("text", ["Hello.", "".join(SENTENCES), "1234.56 🙂 — `x`", "..."])
def test_the_same_audio_as_over_http(text: str) -> None:
    async def everything(home: HomeAssistant) -> tuple[bytes | None, bytes]:
        await home.set_up()
        whole = await home.speak(text, "Bert")
        streamed = [pcm async for pcm in home.stream(spelled(text), "Bert")]
        return whole, b"".join(streamed)

    voice = FakeVoice(n_chunks=3, live=False)  # one that takes live text may be given other pieces
    with serving(voice, wyoming_port=0) as live:
        expected = over_http(live, text, voice="Bert")
        home = HomeAssistant(wyoming_port(live))
        whole, streamed = asyncio.run(asyncio.wait_for(everything(home), DEADLINE_S))
    assert expected
    assert whole == expected
    assert streamed == expected


def test_the_built_in_voice_says_the_same_as_over_http() -> None:
    async def everything(home: HomeAssistant) -> tuple[bytes | None, bytes]:
        await home.set_up()
        assert home.program is not None
        assert "built-in" in (home.program.description or "")
        (first, *_) = home.voices("en")
        whole = await home.speak(text, first)
        streamed = [pcm async for pcm in home.stream(spelled(text), first)]
        return whole, b"".join(streamed)

    text = "The door is open."
    with serving(load=load_voice, wyoming_port=0) as live:
        home = HomeAssistant(wyoming_port(live))
        whole, streamed = asyncio.run(asyncio.wait_for(everything(home), 60))
        expected = over_http(live, text, voice=home.voices("en")[0])
    assert len(expected) > 24_000
    assert whole == expected
    assert streamed == expected


@pytest.mark.parametrize("takes_live_text", [False, True])
def test_speech_is_heard_while_the_answer_is_written(takes_live_text: bool) -> None:
    async def answer(heard: asyncio.Event) -> AsyncIterator[str]:
        yield SENTENCES[0]
        yield SENTENCES[1]
        yield SENTENCES[2][:20]
        await heard.wait()  # no more text before something is heard
        yield SENTENCES[2][20:]

    async def converse(home: HomeAssistant) -> bytes:
        heard = asyncio.Event()
        audio = b""
        async for pcm in home.stream(answer(heard), None):
            audio += pcm
            heard.set()
        return audio

    voice = FakeVoice(n_chunks=2, live=takes_live_text)
    with serving(voice, wyoming_port=0) as live:
        home = HomeAssistant(wyoming_port(live))
        audio = asyncio.run(asyncio.wait_for(converse(home), DEADLINE_S))
        if not takes_live_text:  # otherwise the pieces may be others
            assert audio == over_http(live, "".join(SENTENCES))
    assert len(audio) >= 2 * 2 * FRAME


def test_an_empty_answer_ends() -> None:
    async def converse(home: HomeAssistant) -> list[bytes]:
        return [pcm async for pcm in home.stream(spelled(""), None)]

    with serving(FakeVoice(), wyoming_port=0) as live:
        home = HomeAssistant(wyoming_port(live))
        assert asyncio.run(asyncio.wait_for(converse(home), DEADLINE_S)) == []


def test_failures_do_not_hang() -> None:
    async def converse(home: HomeAssistant) -> None:
        assert await home.speak("Hello.", "nobody") is None
        assert await home.speak("", None) is None
        with pytest.raises(ConnectionError):
            async for _ in home.stream(spelled("Hello."), "nobody"):
                pass

    with serving(FakeVoice(), wyoming_port=0) as live:
        home = HomeAssistant(wyoming_port(live))
        asyncio.run(asyncio.wait_for(converse(home), DEADLINE_S))


def test_interruptions_free_the_slot() -> None:
    async def interrupt(home: HomeAssistant) -> None:
        speech = home.stream(spelled("".join(SENTENCES)), None)
        async for _ in speech:
            break
        await speech.aclose()

    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, wyoming_port=0, max_concurrent=1, max_queue=0) as live:
        home = HomeAssistant(wyoming_port(live))
        for _ in range(10):
            asyncio.run(asyncio.wait_for(interrupt(home), DEADLINE_S))
            until(lambda: live.service.running == 0 and voice.open_now == 0)
        voice.n_chunks = 1
        assert len(over_http(live, "Hello.")) == 2 * FRAME
