"""The official `openai` package, sync and async, against a running server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import openai
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until
from openai import AsyncOpenAI, OpenAI

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
FRAME_S = FRAME / RATE


@contextmanager
def client_of(live: Live, key: str = "any", retries: int = 0) -> Iterator[OpenAI]:
    with OpenAI(
        api_key=key,
        base_url=f"{live.url}/v1",
        max_retries=retries,
        timeout=20,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:
        yield client


def async_client_of(live: Live) -> AsyncOpenAI:
    return AsyncOpenAI(
        api_key="any",
        base_url=f"{live.url}/v1",
        max_retries=0,
        timeout=20,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


def seconds_of(content: bytes, name: str) -> float:
    """How long a decoder plays it."""
    if name == "pcm":
        return len(content) / 2 / RATE
    with av.open(io.BytesIO(content)) as container:
        return sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))


def said(voice: FakeVoice, chunks: int) -> bytes:
    return b"".join(pcm16(voice.streams[-1].samples(n)) for n in range(chunks))


def hello(client: OpenAI, **options: Any) -> bytes:
    chosen = {"model": "tts-1", "voice": "alloy", "input": "Hello.", **options}
    return client.audio.speech.create(**chosen).content


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str, tmp_path: Path) -> None:
    with serving(FakeVoice(n_chunks=10)) as live, client_of(live) as client:
        content = hello(client, response_format=name)
        assert 10 * FRAME_S - 0.02 <= seconds_of(content, name) <= 10 * FRAME_S + 0.1
        with client.audio.speech.with_streaming_response.create(
            model="gpt-4o-mini-tts", voice="coral", input="Hello.", response_format=name
        ) as response:
            assert response.headers["transfer-encoding"] == "chunked"
            assert response.request_id
            response.stream_to_file(tmp_path / "speech")
        streamed = (tmp_path / "speech").read_bytes()
        assert seconds_of(streamed, name) == seconds_of(content, name)


def test_every_parameter_arrives() -> None:
    voice = FakeVoice()
    with serving(voice) as live, client_of(live) as client:
        hello(
            client,
            voice={"id": "Bert"},
            instructions="Whisper.",
            speed=1.25,
            response_format="pcm",
            extra_body={"seed": 11, "language": "French", "temperature": 0.5, "unheard_of": {}},
        )
    request = voice.requests[0]
    assert (request.voice, request.instruct, request.language) == ("Bert", "Whisper.", "french")
    assert (request.seed, request.temperature) == (11, 0.5)


def test_pcm_in_pieces_as_it_is_made() -> None:
    voice = FakeVoice(n_chunks=5)
    with serving(voice) as live, client_of(live) as client:
        with client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="anna", input="Hello.", response_format="pcm"
        ) as response:
            got = b"".join(response.iter_bytes(1000))
        assert got == said(voice, 5)


def test_a_client_that_stops_listening_ends_the_speech() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with (
        serving(voice, max_concurrent=1, max_queue=0, guard=False) as live,
        client_of(live) as client,
    ):
        for _ in range(3):
            with client.audio.speech.with_streaming_response.create(
                model="tts-1", voice="anna", input="endless", response_format="pcm"
            ) as response:
                pieces = response.iter_bytes()  # the response is closed when this is dropped
                assert next(pieces)
                assert voice.open_now == 1
            until(lambda: voice.open_now == 0 and live.service.running == 0)


@pytest.mark.parametrize("name", FORMATS)
def test_events(name: str) -> None:
    with serving(FakeVoice(n_chunks=5)) as live, client_of(live) as client:
        with client.audio.speech.with_streaming_response.create(
            model="gpt-4o-mini-tts",
            voice="ash",
            input="Hello.",
            response_format=name,
            stream_format="sse",
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    *deltas, done = (json.loads(line.removeprefix("data: ")) for line in lines)
    audio = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert 5 * FRAME_S - 0.02 <= seconds_of(audio, name) <= 5 * FRAME_S + 0.1
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["output_tokens"] == 5


def test_models() -> None:
    with serving(FakeVoice()) as live, client_of(live) as client:
        names = [model.id for model in client.models.list()]
        assert names == ["fake", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
        assert client.models.retrieve("tts-1").object == "model"
        assert client.models.retrieve("Qwen/fake").owned_by == "kazeia"
        with pytest.raises(openai.NotFoundError, match="there is fake"):
            client.models.retrieve("whisper-1")


@pytest.mark.parametrize(
    ("options", "expected", "param", "words"),
    [
        ({"input": ""}, openai.BadRequestError, "input", "text is empty"),
        ({"voice": "nobody"}, openai.BadRequestError, "voice", "anna, Bert"),
        ({"speed": 9}, openai.BadRequestError, "speed", "less than or equal to 4"),
        ({"response_format": "ogg"}, openai.BadRequestError, "response_format", "'flac'"),
        ({"model": "whisper-1"}, openai.NotFoundError, "model", "there is fake, tts-1"),
    ],
)
def test_refusals(
    options: dict[str, Any], expected: type[openai.APIStatusError], param: str, words: str
) -> None:
    with serving(FakeVoice()) as live, client_of(live, retries=2) as client:
        with pytest.raises(expected) as caught:
            hello(client, **options)
        assert hello(client)
    error = caught.value
    assert words in str(error)
    assert (error.param, error.type) == (param, "invalid_request_error")
    assert error.code


def test_keys() -> None:
    with serving(FakeVoice(), api_keys=("secret",)) as live:
        with client_of(live, key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                hello(client)
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
        with client_of(live, key="secret") as client:
            assert hello(client)
            assert client.models.list().data


@pytest.mark.parametrize("error", [EngineFailure("a tensor is NaN"), RuntimeError("a bug")])
def test_a_text_that_fails_is_not_made_three_times(error: Exception) -> None:
    voice = FakeVoice(error=error)
    with serving(voice) as live, client_of(live, retries=2) as client:
        voice.fail_at = 0
        with pytest.raises(openai.InternalServerError) as caught:
            hello(client)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert len(voice.requests) == 1


def test_a_busy_server_is_asked_again() -> None:
    gate = threading.Event()
    voice = FakeVoice(gate=gate)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        with client_of(live) as impatient, client_of(live, retries=8) as patient:
            first: list[bytes] = []
            other = threading.Thread(target=lambda: first.append(hello(impatient)))
            other.start()
            until(lambda: live.service.running == 1)
            with pytest.raises(openai.InternalServerError) as caught:
                hello(impatient)
            assert caught.value.status_code == 503
            assert int(caught.value.response.headers["retry-after"]) >= 1
            assert caught.value.code == "busy"
            opener = threading.Timer(0.5, gate.set)
            opener.start()
            assert hello(patient)
            other.join(20)
            opener.join()
        assert len(first) == 1
        assert len(voice.requests) == 2


def test_a_server_that_is_still_loading_is_asked_again() -> None:
    gate = threading.Event()

    def load(_: object) -> FakeVoice:
        assert gate.wait(20)
        return FakeVoice()

    with serving(load=load, ready=False) as live, client_of(live, retries=8) as client:
        opener = threading.Timer(0.3, gate.set)
        opener.start()
        raw = client.audio.speech.with_raw_response.create(
            model="tts-1", voice="alloy", input="Hello."
        )
        opener.join()
        assert raw.status_code == 200
        assert raw.retries_taken >= 1


def test_async() -> None:
    voice = FakeVoice(n_chunks=4)

    async def test(live: Live) -> None:
        async with async_client_of(live) as client:
            speech = await client.audio.speech.create(
                model="tts-1", voice="nova", input="Hello.", response_format="pcm"
            )
            assert speech.content == said(voice, 4)
            async with client.audio.speech.with_streaming_response.create(
                model="tts-1", voice="nova", input="Hello.", response_format="pcm"
            ) as response:
                got = b"".join([data async for data in response.iter_bytes()])
            assert got == said(voice, 4)
            names = [model.id async for model in client.models.list()]
            assert "tts-1" in names
            with pytest.raises(openai.BadRequestError, match="anna, Bert"):
                await client.audio.speech.create(model="tts-1", voice="nobody", input="Hello.")

    with serving(voice) as live:
        asyncio.run(asyncio.wait_for(test(live), 30))


def test_sentences_sent_side_by_side_are_made_in_their_order() -> None:
    gate = threading.Event()
    voice = FakeVoice(gate=gate)
    texts = [f"Sentence {n}." for n in range(6)]

    def known(live: Live) -> int:
        return live.service.running + live.service.waiting

    async def test(live: Live) -> None:
        async with async_client_of(live) as client:
            tasks = []
            for n, text in enumerate(texts):
                making = client.audio.speech.create(model="tts-1", voice="alloy", input=text)
                tasks.append(asyncio.create_task(making))
                await asyncio.to_thread(until, lambda n=n: known(live) > n)
            gate.set()
            for speech in await asyncio.gather(*tasks):
                assert speech.content

    with serving(voice, max_concurrent=1, max_queue=8) as live:
        asyncio.run(asyncio.wait_for(test(live), 30))
    assert [request.text for request in voice.requests] == texts
