"""The official `elevenlabs` package against a running server."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager

import av
import httpx
import numpy as np
import pytest
from elevenlabs import VoiceSettings
from elevenlabs.client import AsyncElevenLabs, ElevenLabs
from elevenlabs.core.api_error import ApiError
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure

# The package reads an attribute that newer releases of `websockets` would like to see replaced.
pytestmark = pytest.mark.filterwarnings(
    "ignore:ConnectionClosed.(code|reason) is deprecated:DeprecationWarning"
)


@contextmanager
def sdk(live: Live, key: str = "any") -> Iterator[ElevenLabs]:
    with httpx.Client(trust_env=False, timeout=20) as http_client:
        client = ElevenLabs(base_url=live.url, api_key=key, httpx_client=http_client)
        # The package insists on TLS for its WebSocket, whatever base_url says.
        client.text_to_speech._ws_base_url = f"ws://127.0.0.1:{live.port}"
        yield client


def said(voice: FakeVoice, n_chunks: int) -> bytes:
    return b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(n_chunks))


def decoded(audio: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The first channel of an encoded stream."""
    with av.open(io.BytesIO(audio), "r") as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
    return np.concatenate([frame[0] for frame in frames]).astype(np.float32)


def words() -> Iterator[str]:
    yield from ("Hello, ", "how are ", "you? ", "I am ", "fine.")


def test_convert() -> None:
    voice = FakeVoice(n_chunks=10)
    with serving(voice) as live, sdk(live) as client:
        mp3 = b"".join(client.text_to_speech.convert("anna", text="Hello.", model_id="eleven_v3"))
        assert abs(len(decoded(mp3)) / 44_100 - 10 * FRAME / RATE) < 0.08
        pcm = client.text_to_speech.convert(
            "anna",
            text="Hello.",
            output_format="pcm_24000",
            language_code="en",
            seed=5,
            voice_settings=VoiceSettings(stability=0.5, similarity_boost=0.7, speed=1.0),
            previous_text="Before.",
            apply_text_normalization="auto",
        )
        assert b"".join(pcm) == said(voice, 10)
    assert voice.requests[-1].seed == 5
    assert voice.requests[-1].language == "english"


def test_stream() -> None:
    voice = FakeVoice(n_chunks=10)
    with serving(voice) as live, sdk(live) as client:
        pieces = client.text_to_speech.stream("bert", text="Hi.", output_format="pcm_24000")
        assert b"".join(pieces) == said(voice, 10)
        mp3 = b"".join(client.text_to_speech.stream("bert", text="Hi."))
        assert abs(len(decoded(mp3)) / 44_100 - 10 * FRAME / RATE) < 0.08


def test_timestamps_are_null() -> None:
    voice = FakeVoice(n_chunks=4)
    with serving(voice) as live, sdk(live) as client:
        whole = client.text_to_speech.convert_with_timestamps(
            "anna", text="Hello.", output_format="pcm_24000"
        )
        assert whole.alignment is None
        assert base64.b64decode(whole.audio_base_64) == said(voice, 4)
        lines = client.text_to_speech.stream_with_timestamps(
            "anna", text="Hello.", output_format="pcm_24000"
        )
        audio = b""
        for line in lines:
            assert line.alignment is None
            assert line.normalized_alignment is None
            audio += base64.b64decode(line.audio_base_64)
        assert audio == said(voice, 4)


def test_the_async_client() -> None:
    voice = FakeVoice(n_chunks=4)

    async def use(live: Live) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as http_client:
            client = AsyncElevenLabs(base_url=live.url, api_key="any", httpx_client=http_client)
            stream = client.text_to_speech.stream("anna", text="Hello.", output_format="pcm_24000")
            pieces = [piece async for piece in stream]
        assert b"".join(pieces) == said(voice, 4)

    with serving(voice) as live:
        asyncio.run(use(live))


def test_voices() -> None:
    with serving(FakeVoice()) as live, sdk(live) as client:
        voices = client.voices.get_all().voices
        assert [(voice.voice_id, voice.name) for voice in voices] == [
            ("anna", "anna"),
            ("Bert", "Bert"),
        ]
        assert client.voices.get("bert").voice_id == "Bert"
        assert [voice.name for voice in client.voices.search(search="er").voices] == ["Bert"]
        with pytest.raises(ApiError) as missing:
            client.voices.get("nobody")
        assert missing.value.status_code == 404


def test_realtime() -> None:
    voice = FakeVoice(n_chunks=6)
    with serving(voice) as live, sdk(live) as client:
        pieces = client.text_to_speech.convert_realtime(
            "anna",
            text=words(),
            model_id="eleven_turbo_v2_5",
            output_format="pcm_24000",
            voice_settings=VoiceSettings(stability=0.5),
        )
        audio = b"".join(pieces)
        assert audio[: 6 * FRAME * 2] == said(voice, 6)
        mp3 = b"".join(client.text_to_speech.convert_realtime("anna", text=words()))
        assert abs(len(decoded(mp3)) / 44_100 - len(audio) / 2 / RATE) < 0.08


def test_realtime_speaks_before_all_is_written() -> None:
    voice = FakeVoice(n_chunks=3)
    heard = False

    def text() -> Iterator[str]:
        yield "The first sentence is here. "
        yield "And a second one. "
        # The helper hands audio on only between two pieces of text.
        end = time.monotonic() + 20
        while not heard:
            assert time.monotonic() < end, "nothing was spoken"
            yield "More. "

    with serving(voice) as live, sdk(live) as client:
        for _ in client.text_to_speech.convert_realtime(
            "anna", text=text(), output_format="pcm_24000"
        ):
            heard = True
        until(lambda: live.service.running == 0)


def test_errors() -> None:
    voice = FakeVoice(error=EngineFailure("a tensor is NaN"))
    with (
        serving(voice, api_keys=("secret",)) as live,
        sdk(live, "secret") as client,
        sdk(live, "wrong") as stranger,
    ):
        with pytest.raises(ApiError) as unknown:
            list(client.text_to_speech.convert("nobody", text="Hi."))
        assert unknown.value.status_code == 400
        assert "anna" in unknown.value.body["error"]["message"]
        with pytest.raises(ApiError) as keyless:
            list(stranger.text_to_speech.convert("anna", text="Hi."))
        assert keyless.value.status_code == 401
        voice.fail_at = 0
        with pytest.raises(ApiError) as broken:
            list(client.text_to_speech.stream("anna", text="Hi."))
        assert broken.value.status_code == 500


def test_realtime_errors() -> None:
    voice = FakeVoice(error=EngineFailure("a tensor is NaN"))
    with (
        serving(voice, api_keys=("secret",)) as live,
        sdk(live, "secret") as client,
        sdk(live, "wrong") as stranger,
    ):
        speech = client.text_to_speech
        with pytest.raises(ApiError) as unknown:
            list(speech.convert_realtime("nobody", text=words()))
        assert unknown.value.status_code == 1008
        with pytest.raises(ApiError) as keyless:
            list(stranger.text_to_speech.convert_realtime("anna", text=words()))
        assert keyless.value.status_code == 1008
        voice.fail_at = 0
        with pytest.raises(ApiError) as broken:
            list(speech.convert_realtime("anna", text=words()))
        assert broken.value.status_code == 1011
        until(lambda: live.service.running == 0)
