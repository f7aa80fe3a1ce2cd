"""The code blocks of the pages of livekit-agents and pipecat, run: `pytest -m clients`."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import livekit_speech
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from integration_pages import VOICES, block, blocks, here, names_of
from live import Live, serving, until

pytestmark = [
    pytest.mark.clients,
    # The frameworks' own warnings are not this project's to mend.
    pytest.mark.filterwarnings("default"),
]

N = 10
SECONDS = N * FRAME / RATE
TEXT = "Just one sentence of this reply."


def test_every_block_of_python_is_run_here() -> None:
    assert len(blocks("livekit-agents", "python")) == 4
    assert len(blocks("pipecat", "python")) == 4


# ---- livekit-agents --------------------------------------------------------------


def test_livekit_s_openai_plug_in_as_the_session_takes_it() -> None:
    code = [
        block("livekit-agents", "python", "openai.TTS("),
        block("livekit-agents", "python", "AgentSession(tts=tts)"),
    ]
    voice = FakeVoice(n_chunks=N, voices=VOICES)

    async def use(live: Live) -> None:
        page = names_of(code, live)
        assert page.session.tts is page.tts
        frame = await page.tts.synthesize(TEXT, conn_options=livekit_speech.once()).collect()
        assert SECONDS <= frame.duration < SECONDS + 0.05  # it ends with a little silence
        await page.tts.aclose()

    with serving(voice) as live:
        asyncio.run(asyncio.wait_for(use(live), 60))
    assert [(made.text, made.voice, made.output.name) for made in voice.requests] == [
        (TEXT, "vivian", "pcm")
    ]


def test_livekit_s_elevenlabs_plug_in() -> None:
    code = [block("livekit-agents", "python", "elevenlabs.TTS(", 'language="en"')]
    voice = FakeVoice(n_chunks=N, voices=VOICES)

    async def use(live: Live) -> None:
        from livekit.agents.utils import http_context

        async with http_context.open():  # as the job of an agent has it
            page = names_of(code, live)
            assert page.tts.capabilities.streaming
            async with page.tts.stream(conn_options=livekit_speech.once()) as stream:
                for word in TEXT.split():
                    stream.push_text(word + " ")
                stream.end_input()
                heard = b"".join([bytes(event.frame.data) async for event in stream])
            await page.tts.aclose()
        assert abs(len(heard) / 2 / RATE - SECONDS) < 0.25

    with serving(voice) as live:
        asyncio.run(asyncio.wait_for(use(live), 60))
    assert [(made.voice, made.language) for made in voice.requests] == [("vivian", "english")]


def test_livekit_s_check(tmp_path: Path) -> None:
    voice = FakeVoice(n_chunks=N, voices=VOICES)
    with serving(voice) as live:
        code = here(block("livekit-agents", "python", "asyncio.run("), live)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr
    said = re.fullmatch(r"(\d\.\d\d) s of speech\n", done.stdout)
    assert said is not None, done.stdout
    assert abs(float(said[1]) - SECONDS) < 0.1
    assert [made.voice for made in voice.requests] == ["vivian"]


# ---- pipecat ---------------------------------------------------------------------


def through_a_pipeline(code: list[str], live: Live, expected: str) -> bytes:
    """The samples that come from the service `tts` which the blocks define."""
    from pipecat.frames.frames import (
        LLMFullResponseEndFrame,
        LLMFullResponseStartFrame,
        LLMTextFrame,
        TTSAudioRawFrame,
    )
    from pipecat.tests.utils import run_test

    async def run() -> bytes:
        page = names_of(code, live)
        words = [LLMTextFrame(word) for word in re.findall(r"\S+ ?", TEXT)]
        down, _ = await run_test(
            page.tts,
            frames_to_send=[LLMFullResponseStartFrame(), *words, LLMFullResponseEndFrame()],
            pipeline_params=page.params,
            start_timeout=30.0,
        )
        if expected == "OpenAITTSService":  # it closes its own client never
            await page.tts._client.close()
        pieces = [frame for frame in down if isinstance(frame, TTSAudioRawFrame)]
        assert {(piece.sample_rate, piece.num_channels) for piece in pieces} == {(RATE, 1)}
        assert type(page.tts).__name__ == expected
        return b"".join(piece.audio for piece in pieces)

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    ("words", "service", "language"),
    [
        (("ElevenLabsTTSService", "Language.EN"), "ElevenLabsTTSService", "english"),
        (("ElevenLabsTTSService", "TOKEN"), "ElevenLabsTTSService", "auto"),
        (("OpenAITTSService",), "OpenAITTSService", "auto"),
    ],
)
def test_pipecat(words: tuple[str, ...], service: str, language: str) -> None:
    code = [block("pipecat", "python", *words), block("pipecat", "python", "PipelineParams(")]
    voice = FakeVoice(n_chunks=N, voices=VOICES)
    with serving(voice) as live:
        heard = through_a_pipeline(code, live, service)
        until(lambda: live.service.running == 0)
    assert abs(len(heard) / 2 / RATE - SECONDS) < 0.35
    assert [made.voice for made in voice.requests] == ["vivian"]  # "alloy" stands for it
    assert [made.language for made in voice.requests] == [language]
