from __future__ import annotations

import asyncio
import io
import threading
import wave
from typing import Any

import httpx
import numpy as np
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import serving

from kazeia_server.app import create_app
from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure, InvalidRequest, VoiceLoadError
from kazeia_server.settings import Settings


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


def test_synthesize_gives_a_true_wav() -> None:
    voice = FakeVoice(n_chunks=4)
    with serving(voice) as live:
        response = live.post({"text": "Hello.", "voice": "bert", "seed": 7})
    assert response.status_code == 200
    assert response.headers["content-type"] == "audio/wav"
    assert int(response.headers["content-length"]) == len(response.content) == 44 + 4 * FRAME * 2
    with wave.open(io.BytesIO(response.content)) as reader:
        assert (reader.getframerate(), reader.getnframes()) == (RATE, 4 * FRAME)
        data = reader.readframes(reader.getnframes())
    assert data == b"".join(pcm16(voice.streams[0].samples(n)) for n in range(4))
    assert voice.requests[0].voice == "Bert"
    assert voice.requests[0].seed == 7
    headers = response.headers
    assert headers["x-kazeia-ended"] == "eos"
    assert 0 < float(headers["x-kazeia-ttfb"]) < 5
    assert float(headers["x-kazeia-rtf"]) == pytest.approx(0.5)
    assert float(headers["x-kazeia-audio-seconds"]) == 0.32
    assert headers["x-kazeia-chunks"] == "4"
    assert headers["x-kazeia-voice"] == "Bert"


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"", 400, "not valid JSON"),
        (b"text", 400, "not valid JSON"),
        (b"null", 400, "JSON object"),
        ({}, 400, "lacks the field 'text'"),
        ({"text": ""}, 400, "text is empty"),
        ({"text": "  \n"}, 400, "text is empty"),
        ({"text": "a" * 100_000}, 400, "100000 characters; at most 20000"),
        ({"text": "a", "voice": "nobody"}, 400, "anna, Bert"),
        ({"text": "a", "language": "klingon"}, 400, "auto, english, french"),
        ({"text": "a", "voice": "\r\nx-evil: 1"}, 400, "unknown voice"),
        ({"text": "a", "format": "mp3"}, 400, "no field 'format'; it knows"),
        (b'{"text": "a", "temperature": NaN}', 400, "finite"),
        (b'{"text": "a", "top_p": -Infinity}', 400, "finite|greater"),
        ({"text": "a", "max_frames": 10**9}, 400, "less than or equal"),
        (b'{"text": "\\ud800"}', 400, "not valid JSON"),
        (b'{"text": "a\\u0000b", "clean": false}', 400, "NUL"),
        ({"text": "a", "speed": 9}, 400, "less than or equal to 4"),
        ({"text": "a", "response_format": "midi"}, 400, "'pcm', 'wav'"),
        ({"text": "a", "response_format": "mp3", "sample_rate": 47999}, 400, "expected 8000"),
        (b'{"text": "\xff"}', 400, "not valid JSON"),
        (b"[" * 500_000, 400, "not valid JSON"),
        (b"x" * (2 << 20), 413, "at most 1048576 bytes"),
    ],
)
def test_bad_bodies(body: Any, status: int, expected: str) -> None:
    voice = FakeVoice()
    with serving(voice) as live:
        response = live.post(body)
        assert response.status_code == status
        with pytest.raises(AssertionError, match=expected):
            raise AssertionError(error_of(response)["message"])
        assert voice.requests == []
        assert live.post({"text": "Still here."}).status_code == 200


def test_a_large_body_without_a_declared_length() -> None:
    with serving(FakeVoice()) as live, httpx.Client(trust_env=False) as client:
        response = client.post(
            f"{live.url}/synthesize",
            content=(b"x" * 65536 for _ in range(32)),
            headers={"content-type": "application/json"},
        )
        assert response.status_code == 413
        assert error_of(response)["code"] == "payload_too_large"
        assert live.post({"text": "Still here."}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_bodies_must_be_declared_as_json(kind: str) -> None:
    with serving(FakeVoice()) as live:
        response = live.post({"text": "a"}, **{"content-type": kind})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


def test_unknown_paths_and_methods() -> None:
    with serving(FakeVoice()) as live:
        missing = live.get("/nothing/here")
        assert missing.status_code == 404
        assert error_of(missing)["code"] == "not_found"
        wrong = live.get("/synthesize")
        assert wrong.status_code == 405
        assert wrong.headers["allow"] == "POST"
        assert "POST" in error_of(wrong)["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineFailure("a tensor is NaN"), 500, "engine_error"),
        (RuntimeError("/secret"), 500, "engine_error"),
        (InvalidRequest("nothing to say", param="text"), 400, "invalid_request"),
    ],
)
def test_failures_of_the_voice(error: Exception, status: int, code: str) -> None:
    voice = FakeVoice(error=error)
    with serving(voice) as live:
        voice.fail_at = 1
        response = live.post({"text": "a"})
        assert response.status_code == status
        assert error_of(response)["code"] == code
        assert "secret" not in response.text
        voice.fail_at = None
        assert live.post({"text": "a"}).status_code == 200


def test_overload_is_said_with_a_time_to_come_back() -> None:
    gate = threading.Event()
    voice = FakeVoice(gate=gate)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        answers: list[httpx.Response] = []
        first = threading.Thread(target=lambda: answers.append(live.post({"text": "a"})))
        first.start()
        while voice.open_now == 0:
            pass
        refused = live.post({"text": "b"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert error_of(refused)["code"] == "busy"
        assert live.get("/health").json()["running"] == 1
        gate.set()
        first.join(10)
        assert answers[0].status_code == 200


def test_health_and_readiness_while_loading() -> None:
    gate = threading.Event()

    def load(_: Settings) -> FakeVoice:
        assert gate.wait(20)
        return FakeVoice()

    with serving(load=load, ready=False) as live:
        health = live.get("/health")
        assert health.status_code == 200
        assert health.json()["state"] == "loading"
        assert health.json()["voice_source"] == "built-in"
        for response in (live.get("/readyz"), live.get("/v1/voices"), live.post({"text": "a"})):
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert error_of(response)["code"] == "loading"
        gate.set()
        while live.get("/readyz").status_code != 200:
            pass
        assert live.get("/health").json()["state"] == "ready"
        assert live.post({"text": "a"}).status_code == 200


def test_a_voice_that_failed_to_load() -> None:
    def load(_: Settings) -> FakeVoice:
        raise VoiceLoadError("talker.gguf lacks output.weight")

    with serving(load=load) as live:
        assert live.get("/health").status_code == 200
        assert "output.weight" in live.get("/health").json()["failure"]
        response = live.get("/readyz")
        assert response.status_code == 503
        assert "output.weight" in error_of(response)["message"]


def test_monitors_may_ask_for_the_head_alone() -> None:
    with serving(FakeVoice()) as live, httpx.Client(trust_env=False) as client:
        for path in ("/health", "/healthz", "/readyz"):
            answer = client.head(live.url + path)
            assert (answer.status_code, answer.content) == (200, b"")


def test_the_examples_of_the_documentation_are_spoken() -> None:
    with serving(FakeVoice()) as live, httpx.Client(trust_env=False) as client:
        tried = 0
        for path, item in client.get(live.url + "/openapi.json").json()["paths"].items():
            content = item.get("post", {}).get("requestBody", {}).get("content", {})
            for media in content.values():
                tried += 1
                address = live.url + path.replace("{voice_id}", "anna")
                answer = client.post(address, json=media["example"])
                assert answer.status_code == 200, (path, answer.text)
        assert tried >= 3


def test_voices() -> None:
    with serving(FakeVoice()) as live:
        body = live.get("/v1/voices").json()
    assert [(voice["id"], voice["default"]) for voice in body["voices"]] == [
        ("anna", True),
        ("Bert", False),
    ]
    assert body["languages"] == ["auto", "english", "french"]


def test_openapi_lists_the_doors_and_their_answers() -> None:
    schema = create_app(Settings()).openapi()
    assert {"/health", "/readyz", "/v1/voices", "/synthesize", "/metrics"} < set(schema["paths"])
    post = schema["paths"]["/synthesize"]["post"]
    assert {"200", "400", "401", "408", "413", "415", "500", "503"} <= set(post["responses"])
    fields = post["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"text", "voice", "language", "instruct", "seed", "cp_top_k"} <= set(fields)
    assert "HTTPValidationError" not in str(schema)


def test_parallel_requests_in_process() -> None:
    """Through httpx's ASGI transport: no socket, the same application."""

    async def test() -> None:
        voice = FakeVoice(n_chunks=3, delay_s=0.002)
        app = create_app(Settings(max_concurrent=2, max_queue=8), load=lambda _: voice)
        async with app.router.lifespan_context(app):
            assert await app.state.service.settled() == "ready"
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                answers = await asyncio.gather(
                    *(client.post("/synthesize", json={"text": f"text {n}"}) for n in range(8))
                )
        for answer in answers:
            assert answer.status_code == 200
            samples = np.frombuffer(answer.content[44:], "<i2")
            assert len(samples) == 3 * FRAME
        assert voice.most_open == 2

    asyncio.run(asyncio.wait_for(test(), 20))
