from __future__ import annotations

import base64
import io
import json
import threading
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until
from pydantic import ValidationError

from kazeia_server.audio.formats import OutputFormat
from kazeia_server.audio.pcm import pcm16
from kazeia_server.doors.openai.messages import SpeechBody, speech_request
from kazeia_server.errors import EngineFailure, InvalidRequest, UnknownModel
from kazeia_server.settings import Settings
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.voices.backend import BackendInfo

CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
MAGIC = {
    "mp3": (b"\xff\xf3", b"\xff\xfb", b"\xff\xf2", b"ID3"),
    "opus": (b"OggS",),
    "aac": (b"\xff\xf1", b"\xff\xf9"),
    "flac": (b"fLaC",),
    "wav": (b"RIFF",),
}
INFO = FakeVoice().info


def speak(live: Live, timeout: float = 20.0, **fields: Any) -> httpx.Response:
    body = {"model": "tts-1", "input": "Hello.", "voice": "anna", **fields}
    with httpx.Client(trust_env=False, timeout=timeout) as client:
        return client.post(f"{live.url}/v1/audio/speech", json=body)


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def events_of(text: str) -> list[dict[str, Any]]:
    parts = text.split("\n\n")
    assert parts.pop() == "", "the last event is not complete"
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def translate(
    info: BackendInfo = INFO, settings: Settings | None = None, **fields: Any
) -> SynthesisRequest:
    body = SpeechBody.model_validate_json(json.dumps({"input": "Hello.", **fields}))
    return speech_request(body, info, settings or Settings())


def said(voice: FakeVoice, chunks: int) -> bytes:
    return b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(chunks))


# What a body means


def test_the_fields_of_the_api() -> None:
    wanted = translate(
        voice="Bert", instructions="Whisper.", response_format="flac", speed=1.5, model="tts-1-hd"
    )
    assert (wanted.text, wanted.voice, wanted.instruct) == ("Hello.", "Bert", "Whisper.")
    assert wanted.speed == 1.5
    assert wanted.output == OutputFormat("flac")


def test_what_is_left_out_comes_from_the_settings() -> None:
    wanted = translate(settings=Settings(temp=0.3, topk=7, stream_chunk=4))
    assert (wanted.temperature, wanted.top_k, wanted.chunk) == (0.3, 7, 4)
    assert (wanted.voice, wanted.language, wanted.seed) == (None, "auto", 0)
    assert wanted.output == OutputFormat("mp3")


def test_samples_without_a_header_have_the_rate_that_clients_expect() -> None:
    assert translate(response_format="pcm").output == OutputFormat("pcm", sample_rate=24_000)
    asked = translate(response_format="pcm", sample_rate=16_000)
    assert asked.output == OutputFormat("pcm", sample_rate=16_000)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"language": "French"}, {"language": "French"}),
        ({"lang_code": "fr"}, {"language": "fr"}),
        ({"lang_code": "a"}, {"language": "en"}),
        ({"language": "english", "lang_code": "fr"}, {"language": "english"}),
        ({"seed": 5}, {"seed": 5}),
        ({"seed": -1}, {"seed": 0}),
        ({"temperature": 0, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"max_new_tokens": 99}, {"max_frames": 99}),
        ({"max_new_tokens": 99, "max_frames": 5}, {"max_frames": 5}),
        ({"non_streaming_mode": True}, {"text_mode": "whole"}),
        ({"non_streaming_mode": False}, {"text_mode": "streaming"}),
        ({"non_streaming_mode": True, "text_mode": "auto"}, {"text_mode": "auto"}),
        ({"initial_codec_chunk_frames": 3}, {"chunk": 3}),
        ({"initial_codec_chunk_frames": 0}, {"chunk": "auto"}),
        ({"initial_codec_chunk_frames": 3, "chunk": 0}, {"chunk": 0}),
        ({"normalization_options": {"normalize": False}}, {"clean": False}),
        ({"normalization_options": {"unit_normalization": True}}, {"clean": True}),
        ({"voice": {"id": "Bert"}}, {"voice": "Bert"}),
        ({"voice": ""}, {"voice": None}),
        ({"model": ""}, {}),
        ({"instructions": ""}, {"instruct": None}),
        ({"task_type": "CustomVoice"}, {}),
        ({"cp_temperature": 0.1, "split": "none"}, {"cp_temperature": 0.1, "split": "none"}),
        ({"stream": True, "return_timing": True, "volume_multiplier": 1.0, "x": [1]}, {}),
        ({"ref_audio": None, "ref_text": "", "x_vector_only_mode": False}, {}),
        ({"speaker_embedding": [], "word_timestamps": False, "speed": None}, {"speed": 1.0}),
    ],
)
def test_what_other_servers_for_these_models_take(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert translate(**fields) == replace(translate(), **expected)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ref_audio": "https://example.org/a.wav"}, "ref_audio"),
        ({"ref_text": "what is said in it"}, "ref_text"),
        ({"x_vector_only_mode": True}, "x_vector_only_mode"),
        ({"speaker_embedding": [0.1, 0.2]}, "speaker_embedding"),
        ({"word_timestamps": True}, "word_timestamps"),
    ],
)
def test_what_would_change_the_speech_and_cannot_be_done(
    fields: dict[str, Any], param: str
) -> None:
    with serving(FakeVoice()) as live:
        response = speak(live, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert "not supported" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("kind", "task", "accepted"),
    [
        ("custom_voice", "CustomVoice", True),
        ("custom_voice", "VoiceDesign", False),
        ("custom_voice", "Base", False),
        ("voice_design", "VoiceDesign", True),
        ("voice_design", "CustomVoice", False),
        ("base", "Base", True),
        ("built-in", "CustomVoice", True),
        ("built-in", "VoiceDesign", False),
    ],
)
def test_the_task_is_what_the_model_does(kind: str, task: str, accepted: bool) -> None:
    info = replace(INFO, kind=kind)
    if accepted:
        translate(info, task_type=task)
    else:
        with pytest.raises(InvalidRequest, match=task) as caught:
            translate(info, task_type=task)
        assert caught.value.param == "task_type"


@pytest.mark.parametrize(
    "name",
    [
        "tts-1",
        "tts-1-hd",
        "TTS-1",
        "tts-1-1106",
        "gpt-4o-mini-tts",
        "gpt-4o-mini-tts-2025-12-15",
        "fake",
        "Qwen/Fake",
        "my-folder",
    ],
)
def test_names_of_the_model(name: str) -> None:
    translate(settings=Settings(model=Path("somewhere/my-folder")), model=name)


@pytest.mark.parametrize("name", ["whisper-1", "tts-2", "tts", "gpt-4o-mini-tts-x", "../fake/.."])
def test_unknown_models(name: str) -> None:
    with pytest.raises(UnknownModel, match=r"there is fake, tts-1, tts-1-hd, gpt-4o-mini-tts"):
        translate(model=name)


def test_the_schema_says_what_is_accepted() -> None:
    schema = SpeechBody.model_json_schema()
    assert "$defs" not in schema, "references would lead nowhere inside the OpenAPI document"
    assert schema["required"] == ["input"]
    assert schema.get("additionalProperties", True)
    for wrong in ({"seed": -2}, {"top_k": -2}, {"sample_rate": 7999}, {"voice": {"name": "a"}}):
        with pytest.raises(ValidationError):
            SpeechBody.model_validate_json(json.dumps({"input": "a", **wrong}))


# The answer


@pytest.mark.parametrize("name", CONTENT_TYPES)
def test_formats_have_their_type_and_are_what_they_say(name: str) -> None:
    with serving(FakeVoice()) as live:
        streamed = speak(live, response_format=name)
        complete = speak(live, response_format=name, stream=False)
    for response in (streamed, complete):
        assert response.status_code == 200
        assert response.headers["content-type"] == CONTENT_TYPES[name]
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        if name in MAGIC:
            assert response.content.startswith(MAGIC[name])
    assert "content-length" not in streamed.headers
    assert int(complete.headers["content-length"]) == len(complete.content)


def test_mp3_is_the_default() -> None:
    with serving(FakeVoice()) as live:
        response = speak(live)
        as_null = speak(live, response_format=None, stream_format=None, stream=None, speed=None)
    assert response.headers["content-type"] == "audio/mpeg"
    assert response.content == as_null.content


def test_pcm_is_the_samples_and_nothing_else() -> None:
    voice = FakeVoice(n_chunks=4)
    with serving(voice) as live:
        streamed = speak(live, response_format="pcm")
        assert streamed.content == said(voice, 4)
        complete = speak(live, response_format="pcm", stream=False)
        assert complete.content == said(voice, 4)


def test_a_voice_of_another_rate_is_resampled() -> None:
    voice = FakeVoice(n_chunks=4)
    voice.info = replace(voice.info, sample_rate=16_000)
    with serving(voice) as live:
        content = speak(live, response_format="pcm").content
        asked = speak(live, response_format="pcm", sample_rate=8_000).content
    assert len(content) == 4 * FRAME * 2 * 3 // 2
    assert len(asked) == 4 * FRAME * 2 // 2


def test_a_complete_wav_has_true_sizes() -> None:
    voice = FakeVoice(n_chunks=4)
    with serving(voice) as live:
        content = speak(live, response_format="wav", stream=False).content
        with wave.open(io.BytesIO(content)) as reader:
            assert reader.getparams()[:4] == (1, 2, RATE, 4 * FRAME)
            assert reader.readframes(4 * FRAME) == said(voice, 4)


def test_a_streamed_wav_has_one_canonical_header() -> None:
    voice = FakeVoice(n_chunks=4)
    with serving(voice) as live:
        content = speak(live, response_format="wav").content
        assert (content[:4], content[8:16], content[36:40]) == (b"RIFF", b"WAVEfmt ", b"data")
        assert content[44:] == said(voice, 4)
    assert content.count(b"RIFF") == 1


def test_the_first_audio_does_not_wait_for_the_last() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.005)
    body = {"model": "tts-1", "input": "endless", "voice": "anna", "response_format": "mp3"}
    with serving(voice, guard=False) as live, httpx.Client(trust_env=False, timeout=20) as client:
        with client.stream("POST", f"{live.url}/v1/audio/speech", json=body) as response:
            assert response.status_code == 200
            pieces = response.iter_raw()  # the response is closed when this is dropped
            assert next(pieces)
            assert voice.open_now == 1
        until(lambda: voice.open_now == 0 and live.service.running == 0)


def test_a_voice_may_be_an_object_or_a_name_of_the_api() -> None:
    voice = FakeVoice()
    with serving(voice, voice_aliases=("narrator=Bert",)) as live:
        for asked in ({"id": "bert"}, "alloy", {"id": "marin"}, "default", "narrator"):
            assert speak(live, voice=asked, response_format="pcm").status_code == 200
    used = [request.voice for request in voice.requests]
    assert used == ["Bert", "anna", "anna", "anna", "Bert"]


# Events


@pytest.mark.parametrize("name", ["mp3", "pcm", "wav", "opus"])
def test_events_carry_the_same_bytes(name: str) -> None:
    with serving(FakeVoice(n_chunks=5)) as live:
        plain = speak(live, response_format=name)
        response = speak(live, response_format=name, stream_format="sse")
        with_stream_off = speak(live, response_format=name, stream_format="sse", stream=False)
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    *deltas, done = events_of(response.text)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    audio = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert audio == plain.content
    if name == "pcm":
        assert all(len(base64.b64decode(event["audio"])) % 2 == 0 for event in deltas)
    assert done["type"] == "speech.audio.done"
    assert done["ended"] == "eos"
    assert done["usage"] == {"input_tokens": 2, "output_tokens": 5, "total_tokens": 7}
    assert events_of(with_stream_off.text)[-1] == done


def test_events_that_fail_on_the_way_say_so_and_break_off() -> None:
    voice = FakeVoice(n_chunks=6, delay_s=0.02, error=EngineFailure("a tensor is NaN"))
    body = {"input": "Hello.", "stream_format": "sse", "response_format": "pcm"}
    with serving(voice) as live, httpx.Client(trust_env=False, timeout=20) as client:
        voice.fail_at = 3
        got = b""
        with pytest.raises(httpx.RemoteProtocolError):
            with client.stream("POST", f"{live.url}/v1/audio/speech", json=body) as response:
                assert response.status_code == 200
                for data in response.iter_raw():
                    got += data
        events = events_of(got.decode())
        assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * 3
        assert events[-1]["type"] == "speech.audio.error"
        assert events[-1]["error"]["message"] == "a tensor is NaN"
        assert events[-1]["error"]["code"] == "engine_error"
        voice.fail_at = None
        assert speak(live).status_code == 200


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_what_fails_before_the_first_audio_has_its_own_status(stream_format: str) -> None:
    voice = FakeVoice(error=EngineFailure("a tensor is NaN"))
    with serving(voice) as live:
        voice.fail_at = 0
        response = speak(live, stream_format=stream_format)
    assert response.status_code == 500
    assert error_of(response)["message"] == "a tensor is NaN"
    assert response.headers["x-should-retry"] == "false"


# Refusals


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"input": ""}, 400, "input", "empty"),
        ({"input": "  \n\u200b"}, 400, "input", "empty"),
        ({"input": "a" * 101}, 400, "input", "at most 100"),
        ({"input": None}, 400, "input", "string"),
        ({"input": 5}, 400, "input", "string"),
        ({"voice": "nobody"}, 400, "voice", "anna, Bert"),
        ({"voice": {"id": "../etc"}}, 400, "voice", "anna, Bert"),
        ({"voice": 5}, 400, "voice", "string"),
        ({"model": "whisper-1"}, 404, "model", "tts-1-hd"),
        ({"language": "klingon"}, 400, "language", "english, french"),
        ({"response_format": "ogg"}, 400, "response_format", "'mp3'"),
        ({"stream_format": "ws"}, 400, "stream_format", "'sse'"),
        ({"speed": 5}, 400, "speed", "4"),
        ({"speed": "fast"}, 400, "speed", "number"),
        ({"instructions": "a" * 4097}, 400, "instructions", "4096"),
        ({"instructions": "a\0b"}, 400, "instructions", "NUL"),
        ({"sample_rate": 1}, 400, "sample_rate", "8000"),
        ({"sample_rate": 22050, "response_format": "opus"}, 400, "sample_rate", "24000"),
        ({"seed": -2}, 400, "seed", "-1"),
    ],
)
def test_what_cannot_be_used(fields: dict[str, Any], status: int, param: str, words: str) -> None:
    with serving(FakeVoice(), max_text_chars=100) as live:
        response = speak(live, **fields)
        assert response.status_code == status
        error = error_of(response)
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert words in error["message"]
        assert speak(live).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"{}", "application/json", 400),
        (b'{"input": "\\ud800"}', "application/json", 400),
        (b'{"input": "a"}', "text/plain", 415),
        (b'{"input": "' + b"a" * 2000 + b'"}', "application/json", 413),
        (b"[" * 900, "application/json", 400),
    ],
)
def test_bodies_that_cannot_be_read(content: bytes, kind: str, status: int) -> None:
    with serving(FakeVoice(), max_body_bytes=1024) as live:
        with httpx.Client(trust_env=False) as client:
            response = client.post(
                f"{live.url}/v1/audio/speech", content=content, headers={"content-type": kind}
            )
    assert response.status_code == status
    assert error_of(response)["message"]


def test_the_least_that_clients_send() -> None:
    voice = FakeVoice()
    with serving(voice) as live, httpx.Client(trust_env=False) as client:
        response = client.post(f"{live.url}/v1/audio/speech", json={"input": "Hello."})
    assert response.status_code == 200
    assert voice.requests[0].voice == "anna"


@pytest.mark.parametrize("text", ["...", "***", "🙂"])
@pytest.mark.parametrize("stream", [True, False])
def test_text_with_nothing_to_speak_is_a_short_silence(text: str, stream: bool) -> None:
    with serving(FakeVoice()) as live:
        response = speak(live, input=text, response_format="pcm", stream=stream)
    assert response.status_code == 200
    samples = np.frombuffer(response.content, "<i2")
    assert len(samples) == RATE // 5
    assert not samples.any()


def test_loading_and_overload_say_when_to_come_back() -> None:
    gate = threading.Event()

    def load(_: Settings) -> FakeVoice:
        assert gate.wait(20)
        return FakeVoice()

    with serving(load=load, ready=False) as live:
        answers = [speak(live), *(live.get(f"/v1/{path}") for path in ("models", "audio/voices"))]
        for response in answers:
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert error_of(response)["code"] == "loading"
        assert live.get("/v1/").status_code == 200
        assert live.get("/v1/test").json() == {"status": "ok"}
        gate.set()
        until(lambda: live.service.state == "ready")
        assert speak(live).status_code == 200

    voice = FakeVoice(n_chunks=None, delay_s=0.005)
    with serving(voice, max_concurrent=1, max_queue=0, guard=False) as live:
        with httpx.Client(trust_env=False) as client:
            body = {"input": "endless"}
            with client.stream("POST", f"{live.url}/v1/audio/speech", json=body):
                refused = speak(live)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "x-should-retry" not in refused.headers
        assert error_of(refused)["code"] == "busy"


# The routes beside it


def test_models() -> None:
    with serving(FakeVoice()) as live:
        listed = live.get("/v1/models").json()
        assert listed["object"] == "list"
        assert [item["id"] for item in listed["data"]] == [
            "fake",
            "tts-1",
            "tts-1-hd",
            "gpt-4o-mini-tts",
        ]
        for item in listed["data"]:
            assert set(item) >= {"id", "object", "created", "owned_by"}
            assert live.get(f"/v1/models/{item['id']}").json() == item
        assert live.get("/v1/models/Qwen/fake").json()["root"] == "fake"
        missing = live.get("/v1/models/whisper-1")
        assert missing.status_code == 404
        assert error_of(missing)["code"] == "model_not_found"
        for_open_webui = live.get("/v1/audio/models").json()["models"]
    assert [item["id"] for item in for_open_webui] == [item["id"] for item in listed["data"]]


def test_the_list_of_models_in_the_shape_of_the_other_api() -> None:
    with serving(FakeVoice()) as live, httpx.Client(trust_env=False) as client:
        listed = client.get(f"{live.url}/v1/models", headers={"xi-api-key": "any"}).json()
    assert [item["model_id"] for item in listed] == ["fake"]
    assert listed[0]["can_do_text_to_speech"] is True
    assert [item["language_id"] for item in listed[0]["languages"]] == ["english", "french"]


def test_voices_as_open_webui_reads_them() -> None:
    aliases = ("narrator=Bert", "lost=nobody", "boss=alloy")
    with serving(FakeVoice(), voice_aliases=aliases) as live:
        voices = live.get("/v1/audio/voices").json()["voices"]
    assert [(voice["id"], voice["name"], voice["voice"]) for voice in voices] == [
        ("anna", "anna", "anna"),
        ("Bert", "Bert", "Bert"),
        ("narrator", "narrator", "Bert"),
        ("boss", "boss", "anna"),
    ]


def test_a_voice_without_a_name_is_listed_and_can_be_asked_for() -> None:
    voice = FakeVoice(voices=())
    with serving(voice) as live:
        voices = live.get("/v1/audio/voices").json()["voices"]
        assert [item["id"] for item in voices] == ["default"]
        for name in ("default", "alloy"):
            assert speak(live, voice=name).status_code == 200
        assert speak(live, voice="vivian").status_code == 400
    assert [request.voice for request in voice.requests] == [None, None]


def test_what_is_not_served_is_said_in_the_same_shape() -> None:
    with serving(FakeVoice()) as live:
        wrong = live.get("/v1/audio/speech")
        assert wrong.status_code == 405
        assert error_of(wrong)["message"]
        assert error_of(live.get("/v1/audio/transcriptions"))["code"] == "not_found"
