"""The server with a real (tiny) model of the engine behind it: what a client gets is what the
engine makes."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from live import Live, Session, serving, until

from kazeia_engine import Model
from kazeia_engine.synth import synth
from kazeia_server.audio import pcm16
from kazeia_server.engine import load_model

TEXT = "A line of text."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    synth(path, size="tiny", type="q8_0")
    return path


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    with serving(load=lambda _: load_model(folder), model=folder) as server:
        yield server


@pytest.fixture(scope="module")
def expected(folder: Path) -> bytes:
    """What the engine itself makes of TEXT."""
    with Model.load(folder) as model:
        result = model.synthesize(TEXT, speaker="vivian", language="english", seed=7, max_frames=9)
    return bytes(pcm16(result.pcm))


def test_wav_holds_the_engines_samples(live: Live, expected: bytes) -> None:
    body = {"text": TEXT, "voice": "vivian", "language": "english", "seed": 7, "max_frames": 9}
    response = live.post(body)
    assert response.status_code == 200, response.text
    with wave.open(io.BytesIO(response.content)) as wav:
        assert (wav.getframerate(), wav.getsampwidth(), wav.getnchannels()) == (24000, 2, 1)
        assert wav.getnframes() == 9 * 1920
        assert wav.readframes(wav.getnframes()) == expected
    assert int(response.headers["content-length"]) == len(response.content)
    assert np.frombuffer(expected, "<i2").std() > 50


def test_websocket_chunks_join_to_the_same_samples(live: Live, expected: bytes) -> None:
    with live.connect() as websocket:
        session = Session(websocket)
        session.send(
            "session.config", voice="vivian", language="english", seed=7, max_frames=9, chunk=2
        )
        session.say(TEXT)
        done, audio = session.until("audio.done")
        session.until("session.done")
    assert audio == expected
    assert done["n_chunks"] == 5
    assert done["frames"] == 9
    assert done["ended"] == "max_frames"
    assert done["ttfb_s"] > 0


def test_cancel_stops_the_engine_and_frees_the_slot(live: Live, expected: bytes) -> None:
    with live.connect() as websocket:
        session = Session(websocket)
        session.send("session.config", voice="vivian", max_frames=2048, chunk=1)
        session.say(TEXT)
        session.receive()
        session.send("input.cancel")
        session.until("audio.cancelled")
        until(lambda: live.service.running == 0)
    test_wav_holds_the_engines_samples(live, expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("voice", "nobody"),
        ("language", "klingon"),
        ("temperature", -1),
        ("chunk", -3),
        ("text", ""),
    ],
)
def test_bad_fields_are_named(live: Live, field: str, value: object) -> None:
    response = live.post({"text": TEXT, field: value})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == field
    assert live.get("/readyz").status_code == 200


def test_voices_and_health_name_the_model(live: Live, folder: Path) -> None:
    assert "vivian" in live.get("/v1/voices").text
    assert "tiny" in live.get("/health").text
