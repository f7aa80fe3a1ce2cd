"""pipecat's OpenAITTSService in a pipeline, against a running server: `pytest -m clients`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until

from kazeia_server.audio.pcm import pcm16
from kazeia_server.voices.aliases import OPENAI_VOICES

if TYPE_CHECKING:
    from pipecat.frames.frames import Frame

pytestmark = [
    pytest.mark.clients,
    # The framework's own warnings are not this project's to mend.
    pytest.mark.filterwarnings("default"),
]


def run(
    live: Live, frames: Sequence[Frame], **settings: Any
) -> tuple[Sequence[Frame], Sequence[Frame]]:
    """Send frames through a pipeline with the service; what came out of it, down and up."""
    import openai
    from pipecat.pipeline.worker import PipelineParams
    from pipecat.services.openai.tts import OpenAITTSService
    from pipecat.tests.utils import run_test

    async def test() -> tuple[Sequence[Frame], Sequence[Frame]]:
        async with openai.DefaultAsyncHttpxClient() as http_client:  # the service closes none
            service = OpenAITTSService(
                api_key="any",
                base_url=f"{live.url}/v1",
                http_client=http_client,
                settings=OpenAITTSService.Settings(**settings),
            )
            return await run_test(
                service,
                frames_to_send=frames,
                pipeline_params=PipelineParams(audio_out_sample_rate=RATE),
                start_timeout=30.0,
            )

    return asyncio.run(asyncio.wait_for(test(), 60))


def audio_in(frames: Sequence[Frame]) -> bytes:
    from pipecat.frames.frames import TTSAudioRawFrame

    pieces = [frame for frame in frames if isinstance(frame, TTSAudioRawFrame)]
    assert {(frame.sample_rate, frame.num_channels) for frame in pieces} <= {(RATE, 1)}
    assert all(len(frame.audio) % 2 == 0 for frame in pieces)
    return b"".join(frame.audio for frame in pieces)


def errors_in(frames: Sequence[Frame]) -> list[str]:
    from pipecat.frames.frames import ErrorFrame

    return [frame.error for frame in frames if isinstance(frame, ErrorFrame)]


def test_the_names_are_those_it_checks() -> None:
    from pipecat.services.openai.tts import VALID_VOICES

    assert set(OPENAI_VOICES) == set(VALID_VOICES)


def test_speech_through_a_pipeline() -> None:
    from pipecat.frames.frames import TTSSpeakFrame

    voice = FakeVoice(n_chunks=25)
    with serving(voice) as live:
        down, up = run(live, [TTSSpeakFrame("Hello.")], voice="onyx", instructions="Whisper.")
        said = b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(25))
    assert errors_in(up) == []
    assert audio_in(down)[: len(said)] == said
    assert len(audio_in(down)) <= len(said) + FRAME * 2 * 13  # the framework may append silence
    assert (voice.requests[0].instruct, voice.requests[0].speed) == ("Whisper.", 1.0)


def test_every_name_it_knows_is_spoken() -> None:
    from pipecat.frames.frames import TTSSpeakFrame

    voice = FakeVoice()
    with serving(voice) as live:
        for name in OPENAI_VOICES:
            down, up = run(live, [TTSSpeakFrame("Hello.")], voice=name)
            assert errors_in(up) == []
            assert audio_in(down)
    assert len(voice.requests) == len(OPENAI_VOICES)


def test_a_refusal_reaches_the_pipeline_as_an_error() -> None:
    from pipecat.frames.frames import TTSSpeakFrame

    with serving(FakeVoice(), max_text_chars=10) as live:
        down, up = run(live, [TTSSpeakFrame("More than ten characters.")], voice="alloy")
    assert audio_in(down) == b""
    assert any("at most 10" in error for error in errors_in(up))


def test_an_interruption_ends_the_speech() -> None:
    from pipecat.frames.frames import InterruptionFrame, TTSSpeakFrame
    from pipecat.tests.utils import SleepFrame

    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=0, guard=False) as live:
        frames = [TTSSpeakFrame("endless"), SleepFrame(sleep=1.0), InterruptionFrame()]
        down, _ = run(live, frames, voice="alloy")
        until(lambda: voice.open_now == 0 and live.service.running == 0)
    assert audio_in(down)
