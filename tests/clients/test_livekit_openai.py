"""The OpenAI TTS class of livekit-agents against a running server: `pytest -m clients`."""

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
    from livekit.plugins.openai import TTS

pytestmark = [
    pytest.mark.clients,
    # The framework's own warnings are not this project's to mend.
    pytest.mark.filterwarnings("default"),
]

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
MODELS = ("gpt-4o-mini-tts", "tts-1")  # the first is asked for events, the second for audio


@asynccontextmanager
async def plugin(live: Live, **options: Any) -> AsyncIterator[TTS]:
    from livekit.plugins import openai

    tts = openai.TTS(base_url=f"{live.url}/v1", api_key="any", **options)
    try:
        yield tts
    finally:
        await tts.aclose()


def run(live: Live, use: Callable[[TTS], Awaitable[None]], **options: Any) -> None:
    livekit_speech.run(plugin(live, **options), use)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str, model: str) -> None:
    async def use(tts: TTS) -> None:
        frame = await tts.synthesize("Hello.", conn_options=livekit_speech.once()).collect()
        assert (frame.sample_rate, frame.num_channels) == (RATE, 1)
        expected = 10 * FRAME / RATE
        # This client's decoder loses the first frame of any FLAC stream.
        lost = 0.05 if name == "flac" else 0.03
        assert expected - lost <= frame.duration <= expected + 0.1
        samples = np.frombuffer(frame.data, "<i2").astype(np.float32) / 32768
        assert 0.3 < np.abs(samples[RATE // 10 : -RATE // 10]).max() < 0.7

    with serving(FakeVoice(n_chunks=10)) as live:
        run(live, use, model=model, response_format=name)


@pytest.mark.parametrize("model", MODELS)
def test_pcm_is_exact(model: str) -> None:
    voice = FakeVoice(n_chunks=10)

    async def use(tts: TTS) -> None:
        frame = await tts.synthesize("Hello.", conn_options=livekit_speech.once()).collect()
        said = b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(10))
        assert bytes(frame.data)[: len(said)] == said

    with serving(voice) as live:
        run(live, use, model=model, response_format="pcm", voice="onyx", speed=1.0)


def test_request_id_and_usage() -> None:
    metrics: list[Any] = []

    async def use(tts: TTS) -> None:
        tts.on("metrics_collected", metrics.append)
        async for event in tts.synthesize("Hello.", conn_options=livekit_speech.once()):
            assert event.request_id
        await asyncio.to_thread(until, lambda: bool(metrics))

    with serving(FakeVoice(n_chunks=10)) as live:
        run(live, use)
    assert metrics[0].output_tokens == 10
    assert metrics[0].audio_duration == pytest.approx(10 * FRAME / RATE, abs=0.1)


@pytest.mark.parametrize("text", ["...", "🙂"])
def test_text_with_nothing_to_speak_is_no_error(text: str) -> None:
    async def use(tts: TTS) -> None:
        assert (
            await tts.synthesize(text, conn_options=livekit_speech.once()).collect()
        ).duration > 0.1

    with serving(FakeVoice()) as live:
        run(live, use)


def test_a_refusal_is_not_tried_again() -> None:
    from livekit.agents import APIStatusError

    async def use(tts: TTS) -> None:
        with pytest.raises(APIStatusError, match="anna, Bert") as caught:
            await tts.synthesize("Hello.").collect()
        assert caught.value.status_code == 400
        assert not caught.value.retryable

    with serving(FakeVoice()) as live:
        run(live, use, voice="nobody")


@pytest.mark.parametrize("model", MODELS)
def test_speech_that_fails_on_the_way_is_an_error(model: str) -> None:
    from livekit.agents import APIError

    voice = FakeVoice(n_chunks=20, delay_s=0.02, error=EngineFailure("a tensor is NaN"))

    async def use(tts: TTS) -> None:
        with pytest.raises(APIError):
            await tts.synthesize("Hello.", conn_options=livekit_speech.once()).collect()

    with serving(voice) as live:
        voice.fail_at = 10
        run(live, use, model=model, response_format="pcm")


@pytest.mark.parametrize("model", MODELS)
def test_an_interruption_ends_the_speech(model: str) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)

    async def use(tts: TTS) -> None:
        stream = tts.synthesize("endless", conn_options=livekit_speech.once())
        await stream.__anext__()
        assert voice.open_now == 1
        await stream.aclose()

    with serving(voice, max_concurrent=1, max_queue=0, guard=False) as live:
        for _ in range(2):
            run(live, use, model=model)
            until(lambda: voice.open_now == 0 and live.service.running == 0)
