"""pipecat's ElevenLabs services in a pipeline, against a running server: `pytest -m clients`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure

if TYPE_CHECKING:
    import aiohttp
    from pipecat.frames.frames import Frame

pytestmark = [
    pytest.mark.clients,
    # The framework's own warnings are not this project's to mend.
    pytest.mark.filterwarnings("default"),
]

Frames = Sequence[Any]


def over_websocket(live: Live, **options: Any) -> Callable[[aiohttp.ClientSession], Any]:
    def make(_: aiohttp.ClientSession) -> Any:
        from pipecat.services.elevenlabs.tts import ElevenLabsTTSService

        settings = ElevenLabsTTSService.Settings(voice="anna", **options.pop("settings", {}))
        url = f"ws://127.0.0.1:{live.port}"
        return ElevenLabsTTSService(
            **{"api_key": "any", "url": url, "settings": settings, **options}
        )

    return make


def over_http(live: Live) -> Callable[[aiohttp.ClientSession], Any]:
    def make(session: aiohttp.ClientSession) -> Any:
        from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService

        return ElevenLabsHttpTTSService(
            api_key="any",
            aiohttp_session=session,
            base_url=live.url,
            settings=ElevenLabsHttpTTSService.Settings(voice="anna"),
        )

    return make


def run(
    make: Callable[[aiohttp.ClientSession], Any], frames: Sequence[Frame], rate: int = RATE
) -> tuple[Frames, Frames]:
    """Send frames through a pipeline with the service; what came out of it, down and up."""
    import aiohttp
    from pipecat.pipeline.worker import PipelineParams
    from pipecat.tests.utils import run_test

    async def test() -> tuple[Frames, Frames]:
        async with aiohttp.ClientSession() as session:
            return await run_test(
                make(session),
                frames_to_send=frames,
                pipeline_params=PipelineParams(audio_out_sample_rate=rate),
                start_timeout=30.0,
            )

    return asyncio.run(asyncio.wait_for(test(), 60))


def audio_in(frames: Frames, rate: int = RATE) -> bytes:
    from pipecat.frames.frames import TTSAudioRawFrame

    pieces = [frame for frame in frames if isinstance(frame, TTSAudioRawFrame)]
    assert {(frame.sample_rate, frame.num_channels) for frame in pieces} <= {(rate, 1)}
    assert all(len(frame.audio) % 2 == 0 for frame in pieces)
    return b"".join(frame.audio for frame in pieces)


def count(frames: Frames, kind: str) -> int:
    return sum(type(frame).__name__ == kind for frame in frames)


def errors_in(frames: Frames) -> list[str]:
    from pipecat.frames.frames import ErrorFrame

    return [frame.error for frame in frames if isinstance(frame, ErrorFrame)]


def answer_of(*texts: str) -> list[Frame]:
    """What an LLM sends for an answer."""
    from pipecat.frames.frames import (
        LLMFullResponseEndFrame,
        LLMFullResponseStartFrame,
        LLMTextFrame,
    )

    return [
        LLMFullResponseStartFrame(),
        *(LLMTextFrame(text) for text in texts),
        LLMFullResponseEndFrame(),
    ]


def test_a_turn_through_the_websocket() -> None:
    from pipecat.tests.utils import SleepFrame

    voice = FakeVoice(n_chunks=25)
    with serving(voice) as live:
        frames = [*answer_of("Hello", " there", "."), SleepFrame(sleep=1.5)]
        down, up = run(over_websocket(live, settings={"speed": 1.0}), frames)
        said = b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(25))
    assert errors_in(up) == []
    assert audio_in(down)[: len(said)] == said
    assert count(down, "TTSStartedFrame") == count(down, "TTSStoppedFrame") == 1


def test_the_end_of_a_turn_comes_with_its_last_sound() -> None:
    """Not with the three seconds of silence after which pipecat gives up waiting."""
    from pipecat.frames.frames import TTSAudioRawFrame, TTSSpeakFrame, TTSStoppedFrame
    from pipecat.tests.utils import SleepFrame

    with serving(FakeVoice(n_chunks=5)) as live:
        down, _ = run(over_websocket(live), [TTSSpeakFrame("Hello."), SleepFrame(sleep=2.0)])
    kinds = [type(frame) for frame in down]
    assert kinds.index(TTSStoppedFrame) > kinds.index(TTSAudioRawFrame)


def test_sentences_are_kept_apart() -> None:
    from pipecat.tests.utils import SleepFrame

    voice = FakeVoice(n_chunks=4)
    with serving(voice) as live:
        frames = [
            *answer_of("This is the first sentence.", " And the second one is here."),
            SleepFrame(sleep=2.0),
        ]
        down, up = run(over_websocket(live), frames)
    assert errors_in(up) == []
    assert audio_in(down)
    assert " ".join(" ".join(voice.texts).split()) == (
        "This is the first sentence. And the second one is here."
    )


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100])
def test_rates(rate: int) -> None:
    from pipecat.frames.frames import TTSSpeakFrame
    from pipecat.tests.utils import SleepFrame

    with serving(FakeVoice(n_chunks=25)) as live:
        frames = [TTSSpeakFrame("Hello."), SleepFrame(sleep=1.5)]
        down, up = run(over_websocket(live), frames, rate)
    assert errors_in(up) == []
    seconds = len(audio_in(down, rate)) / 2 / rate
    assert 25 * FRAME / RATE - 0.02 <= seconds <= 25 * FRAME / RATE + 1.1


@pytest.mark.parametrize("complete", [True, False])
def test_an_interruption_ends_the_speech(complete: bool) -> None:
    """Whether the LLM is still writing when the user speaks up, or not any more."""
    from pipecat.frames.frames import InterruptionFrame
    from pipecat.tests.utils import SleepFrame

    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        frames = answer_of("An endless sentence it is. ", "And one more of them. ")
        if not complete:
            frames.pop()
        frames += [SleepFrame(sleep=1.0), InterruptionFrame(), SleepFrame(sleep=0.5)]
        down, _ = run(over_websocket(live), frames)
        assert audio_in(down)
        until(lambda: voice.open_now == 0 and live.service.running == 0)


def test_many_interruptions_do_not_use_up_the_contexts() -> None:
    from pipecat.frames.frames import InterruptionFrame
    from pipecat.tests.utils import SleepFrame

    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=2) as live:
        frames: list[Frame] = []
        for _ in range(8):
            frames += answer_of("An endless sentence it is. ")
            frames += [SleepFrame(sleep=0.15), InterruptionFrame()]
        frames.append(SleepFrame(sleep=0.5))
        down, up = run(over_websocket(live), frames)
        until(lambda: voice.open_now == 0 and live.service.running == 0)
    assert errors_in(up) == []
    assert audio_in(down)


def test_a_failure_does_not_stop_the_pipeline() -> None:
    from pipecat.tests.utils import SleepFrame

    voice = FakeVoice(n_chunks=5, error=EngineFailure("a tensor is NaN"))
    with serving(voice) as live:
        voice.fail_at = 0
        down, _ = run(over_websocket(live), [*answer_of("Hello there."), SleepFrame(sleep=1.0)])
    assert audio_in(down) == b""
    assert count(down, "TTSStoppedFrame") == 1


def test_over_http() -> None:
    from pipecat.frames.frames import TTSSpeakFrame

    voice = FakeVoice(n_chunks=25)
    with serving(voice) as live:
        down, up = run(over_http(live), [TTSSpeakFrame("Hello.")])
        said = b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(25))
    assert errors_in(up) == []
    assert audio_in(down)[: len(said)] == said
