"""The ElevenLabs TTS class of livekit-agents against a running server: `pytest -m clients`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import livekit_speech
import numpy as np
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure

if TYPE_CHECKING:
    from livekit.plugins.elevenlabs import TTS

pytestmark = [
    pytest.mark.clients,
    # The framework's own warnings are not this project's to mend.
    pytest.mark.filterwarnings("default"),
]

SENTENCES = "This is the first sentence of them. And here is the second of these sentences."


@asynccontextmanager
async def plugin(live: Live, **options: Any) -> AsyncIterator[TTS]:
    import aiohttp
    from livekit.plugins import elevenlabs

    options = {"voice_id": "anna", "api_key": "any", **options}
    async with aiohttp.ClientSession() as session:
        tts = elevenlabs.TTS(base_url=f"{live.url}/v1", http_session=session, **options)
        try:
            yield tts
        finally:
            await tts.aclose()


def run(live: Live, use: Callable[[TTS], Awaitable[None]], **options: Any) -> None:
    livekit_speech.run(plugin(live, **options), use)


async def spoken(tts: TTS, text: str) -> bytes:
    """One reply through the WebSocket; its samples."""
    async with tts.stream(conn_options=livekit_speech.once()) as stream:
        for word in text.split(" "):  # as an LLM writes
            stream.push_text(word + " ")
        stream.end_input()
        return b"".join([bytes(event.frame.data) async for event in stream])


@pytest.mark.parametrize("encoding", ["mp3_22050_32", "mp3_44100_128", "pcm_24000", "pcm_16000"])
@pytest.mark.parametrize("chunks", [None, [80, 120]])
def test_a_reply_through_the_websocket(encoding: str, chunks: list[int] | None) -> None:
    voice = FakeVoice(n_chunks=10)
    more: dict[str, Any] = {"chunk_length_schedule": chunks} if chunks else {}

    async def use(tts: TTS) -> None:
        samples = np.frombuffer(await spoken(tts, SENTENCES), "<i2")
        rate = int(encoding.split("_")[1])
        made = sum(stream.made for stream in voice.streams) * FRAME / RATE
        assert made >= 10 * FRAME / RATE
        pauses = 0.3 * (len(voice.streams) - 1)
        assert made - 0.05 <= len(samples) / rate <= made + pauses + 0.15
        assert 0.3 < np.abs(samples[rate // 10 :].astype(np.float32) / 32768).max() < 0.7

    with serving(voice) as live:
        run(live, use, encoding=encoding, language="en", **more)
        until(lambda: live.service.running == 0)
    assert voice.requests[0].language == "english"


def test_replies_share_a_connection_and_pcm_is_exact() -> None:
    voice = FakeVoice(n_chunks=10)

    async def use(tts: TTS) -> None:
        for _ in range(7):
            samples = await spoken(tts, "Just one sentence of this reply.")
            said = b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(10))
            assert samples[: len(said)] == said

    with serving(voice, max_sessions=1, max_concurrent=1) as live:
        run(live, use, encoding="pcm_24000")


def test_two_replies_at_once() -> None:
    async def use(tts: TTS) -> None:
        both = await asyncio.gather(spoken(tts, SENTENCES), spoken(tts, SENTENCES))
        assert len(both[0]) == len(both[1]) > 0

    with serving(FakeVoice(n_chunks=10, delay_s=0.005)) as live:
        run(live, use, encoding="pcm_24000")


def test_interruptions_free_the_voice() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)

    async def use(tts: TTS) -> None:
        for _ in range(12):
            stream = tts.stream(conn_options=livekit_speech.once())
            stream.push_text("A reply that is interrupted before its end ")
            stream.flush()
            await stream.__anext__()
            await stream.aclose()
        await asyncio.to_thread(until, lambda: live.service.running == 0)

    with serving(voice, max_concurrent=1, max_queue=1) as live:
        # Words, not whole sentences: only those are not flushed with each message.
        run(live, use, encoding="pcm_24000", auto_mode=False)


def test_without_the_websocket() -> None:
    async def use(tts: TTS) -> None:
        frame = await tts.synthesize("Hello.", conn_options=livekit_speech.once()).collect()
        assert abs(frame.duration - 10 * FRAME / RATE) < 0.1

    with serving(FakeVoice(n_chunks=10)) as live:
        for encoding in ("mp3_22050_32", "pcm_24000"):
            run(live, use, encoding=encoding)


def test_voices() -> None:
    async def use(tts: TTS) -> None:
        assert [voice.id for voice in await tts.list_voices()] == ["anna", "Bert"]

    with serving(FakeVoice()) as live:
        run(live, use)


def test_settings_of_the_voice() -> None:
    from livekit.plugins.elevenlabs import VoiceSettings

    settings = VoiceSettings(stability=0.5, similarity_boost=0.5, speed=2.0)

    async def use(tts: TTS) -> None:
        seconds = len(await spoken(tts, "Just one sentence.")) / 2 / RATE
        assert abs(seconds - 25 * FRAME / RATE / 2) < 0.15

    with serving(FakeVoice(n_chunks=25)) as live:
        run(live, use, encoding="pcm_24000", voice_settings=settings)


def test_a_failure_is_an_error_and_the_connection_goes_on() -> None:
    from livekit.agents import APIError

    voice = FakeVoice(n_chunks=10, error=EngineFailure("a tensor is NaN"))

    async def use(tts: TTS) -> None:
        voice.fail_at = 0
        with pytest.raises(APIError):
            await spoken(tts, "This one breaks.")
        voice.fail_at = None
        assert await spoken(tts, "This one does not.")

    with serving(voice, max_sessions=1) as live:
        run(live, use, encoding="pcm_24000")


@pytest.mark.parametrize("text", ["...", "🙂 🙂"])
def test_nothing_to_speak_is_no_error(text: str) -> None:
    async def use(tts: TTS) -> None:
        assert await spoken(tts, text)

    with serving(FakeVoice()) as live:
        run(live, use, encoding="pcm_24000")


def test_a_key() -> None:
    async def use(tts: TTS) -> None:
        assert await spoken(tts, "Hello there.")

    with serving(FakeVoice(), api_keys=("secret",)) as live:
        run(live, use, api_key="secret")
