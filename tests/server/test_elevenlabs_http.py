"""The HTTP routes of the ElevenLabs API."""

from __future__ import annotations

import base64
import io
import json
import wave
from typing import Any

import httpx
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure

PATHS = ("", "/stream", "/with-timestamps", "/stream/with-timestamps")


def post(live: Live, path: str, body: Any, voice: str = "anna", **query: str) -> httpx.Response:
    with httpx.Client(trust_env=False) as client:
        return client.post(
            f"{live.url}/v1/text-to-speech/{voice}{path}",
            content=body if isinstance(body, bytes) else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
            params=query,
            timeout=20,
        )


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["message"]
    return error


def said(voice: FakeVoice, n_chunks: int) -> bytes:
    return b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(n_chunks))


def test_complete() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice) as live:
        body = {
            "text": "Hello.",
            "model_id": "eleven_turbo_v2_5",
            "language_code": "fr",
            "seed": 7,
            "voice_settings": {"stability": 0.5, "use_speaker_boost": True, "speed": 1},
            "previous_text": "Before.",
            "apply_text_normalization": "auto",
        }
        answer = post(live, "", body, voice="BERT", output_format="pcm_24000")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("audio/")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.content == said(voice, 3)
    request = voice.requests[0]
    assert (request.voice, request.language, request.seed) == ("Bert", "french", 7)


def test_streamed() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice) as live:
        answer = post(live, "/stream", {"text": "Hello."}, output_format="pcm_24000")
    assert answer.headers["content-type"].startswith("audio/")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.content == said(voice, 3)


def test_mp3_is_the_default() -> None:
    with serving(FakeVoice()) as live:
        for path in ("", "/stream"):
            answer = post(live, path, {"text": "Hello."})
            assert answer.headers["content-type"] == "audio/mpeg"
            assert answer.content[:3] == b"ID3" or answer.content[0] == 0xFF


def test_other_rates_and_wav() -> None:
    with serving(FakeVoice(n_chunks=4)) as live:
        answer = post(live, "", {"text": "Hello."}, output_format="wav_16000")
        with wave.open(io.BytesIO(answer.content)) as reader:
            assert reader.getframerate() == 16_000
            assert abs(reader.getnframes() / 16_000 - 4 * FRAME / RATE) < 0.02
        answer = post(live, "", {"text": "Hello."}, output_format="ulaw_8000")
        assert abs(len(answer.content) / 8_000 - 4 * FRAME / RATE) < 0.02


def test_speed() -> None:
    with serving(FakeVoice(n_chunks=25)) as live:
        body = {"text": "Hello.", "voice_settings": {"speed": 2.0}}
        answer = post(live, "", body, output_format="pcm_24000")
    assert abs(len(answer.content) / 2 / RATE - 25 * FRAME / RATE / 2) < 0.05


def test_without_timestamps() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice) as live:
        answer = post(live, "/with-timestamps", {"text": "Hello."}, output_format="pcm_24000")
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.content)
        whole = answer.json()
        assert set(whole) == {"audio_base64", "alignment", "normalized_alignment"}
        assert whole["alignment"] is None
        assert base64.b64decode(whole["audio_base64"]) == said(voice, 3)

        answer = post(
            live, "/stream/with-timestamps", {"text": "Hello."}, output_format="pcm_24000"
        )
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert len(lines) >= 3
        assert all(line["normalized_alignment"] is None for line in lines)
        pieces = [base64.b64decode(line["audio_base64"]) for line in lines]
        assert all(len(piece) % 2 == 0 for piece in pieces)
        assert b"".join(pieces) == said(voice, 3)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"nonsense", "not valid JSON"),
        (b"[]", "JSON object"),
        ({}, "text"),
        ({"text": ""}, "empty"),
        ({"text": " \n"}, "empty"),
        ({"text": 5}, "text"),
        ({"text": "x" * 20_001}, "20000"),
        ({"text": "Hi.", "seed": -1}, "seed"),
        ({"text": "Hi.", "seed": "one"}, "seed"),
        ({"text": "Hi.", "language_code": "tlh"}, "unknown language"),
        ({"text": "Hi.", "voice_settings": {"speed": 9}}, "speed"),
        ({"text": "Hi.", "voice_settings": "loud"}, "voice_settings"),
    ],
)
def test_what_cannot_be_used(live: Live, path: str, body: Any, expected: str) -> None:
    answer = post(live, path, body)
    assert answer.status_code == 400
    assert expected in error_of(answer)["message"]


@pytest.fixture(scope="module")
def live() -> Any:
    with serving(FakeVoice()) as live:
        yield live


@pytest.mark.parametrize("path", PATHS)
def test_unknown_voices_and_formats(live: Live, path: str) -> None:
    answer = post(live, path, {"text": "Hi."}, voice="21m00Tcm4TlvDq8ikWAM")
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "unknown_voice"
    assert "anna" in error_of(answer)["message"]
    answer = post(live, path, {"text": "Hi."}, output_format="mp3_1_1")
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "output_format"


def test_an_alias_stands_for_a_voice() -> None:
    voice = FakeVoice()
    with serving(voice, voice_aliases=("21m00Tcm4TlvDq8ikWAM=Bert",)) as live:
        assert post(live, "", {"text": "Hi."}, voice="21m00Tcm4TlvDq8ikWAM").status_code == 200
        assert voice.requests[0].voice == "Bert"
        assert live.get("/v1/voices/21m00Tcm4TlvDq8ikWAM").json()["voice_id"] == "Bert"


@pytest.mark.parametrize("text", ["...", "***", "🙂"])
def test_nothing_to_speak_is_a_short_silence(live: Live, text: str) -> None:
    answer = post(live, "/stream", {"text": text}, output_format="pcm_24000")
    assert answer.status_code == 200
    assert 0.1 < len(answer.content) / 2 / RATE < 0.5
    assert not any(answer.content)


def test_failures_before_the_first_sound_have_a_status() -> None:
    with serving(FakeVoice(error=EngineFailure("a tensor is NaN"))) as live:
        voice = live.service._backend
        assert isinstance(voice, FakeVoice)
        voice.fail_at = 0
        for path in PATHS:
            answer = post(live, path, {"text": "Hi."})
            assert answer.status_code == 500
            assert error_of(answer)["code"] == "engine_error"


def test_a_failure_on_the_way_breaks_the_answer_off() -> None:
    with serving(FakeVoice(n_chunks=9, error=EngineFailure("a tensor is NaN"))) as live:
        voice = live.service._backend
        assert isinstance(voice, FakeVoice)
        voice.fail_at = 5
        with pytest.raises(httpx.HTTPError):
            post(live, "/stream", {"text": "Hi."}, output_format="pcm_24000")
        assert live.get("/health").status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_leaves_ends_the_speech(path: str) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        with httpx.Client(trust_env=False) as client:
            try:
                with client.stream(
                    "POST",
                    f"{live.url}/v1/text-to-speech/anna{path}?output_format=pcm_24000",
                    json={"text": "endless"},
                    timeout=1.0,
                ) as answer:
                    next(answer.iter_bytes())
            except httpx.ReadTimeout:  # the complete answer never begins
                assert not path.startswith("/stream")
        until(lambda: live.service.running == 0 and voice.open_now == 0)


def test_voices() -> None:
    with serving(FakeVoice()) as live:
        (first, second) = live.get("/v1/voices").json()["voices"]
        assert (first["voice_id"], first["name"]) == ("anna", "anna")
        assert first["category"]
        one = live.get("/v1/voices/bert")
        assert one.json()["voice_id"] == second["voice_id"] == "Bert"
        missing = live.get("/v1/voices/nobody")
        assert missing.status_code == 404
        assert error_of(missing)["code"] == "unknown_voice"
        found = live.get("/v2/voices?search=ann").json()
        assert [voice["voice_id"] for voice in found["voices"]] == ["anna"]
        assert (found["has_more"], found["total_count"]) == (False, 1)
        assert len(live.get("/v2/voices").json()["voices"]) == 2


def test_a_key_in_the_header_of_elevenlabs() -> None:
    with serving(FakeVoice(), api_keys=("secret",)) as live:
        url = f"{live.url}/v1/text-to-speech/anna"
        with httpx.Client(trust_env=False) as client:
            assert client.post(url, json={"text": "Hi."}).status_code == 401
            wrong = client.post(url, json={"text": "Hi."}, headers={"xi-api-key": "no"})
            assert wrong.status_code == 401
            right = client.post(url, json={"text": "Hi."}, headers={"xi-api-key": "secret"})
            assert right.status_code == 200
