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

from kazeia_engine import Guard, Model
from kazeia_engine.tools.synth import synth
from kazeia_engine.types import TextMode
from kazeia_server.audio.pcm import pcm16
from kazeia_server.settings import Settings
from kazeia_server.voices.engine import EngineModel, load_model

TEXT = "A line of text."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    synth(path, size="tiny", type="q8_0")
    return path


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    with serving(load=load_model, model=folder) as server:
        yield server


def made_by_the_engine(folder: Path, text_mode: TextMode) -> bytes:
    with Model.load(folder) as model:
        options = {"speaker": "vivian", "language": "english", "seed": 7, "max_frames": 9}
        return pcm16(model.synthesize(TEXT, text_mode=text_mode, **options).pcm)


@pytest.fixture(scope="module")
def expected(folder: Path) -> bytes:
    """What the engine itself makes of TEXT."""
    return made_by_the_engine(folder, "whole")


@pytest.fixture(scope="module")
def streamed(folder: Path) -> bytes:
    """What the engine itself makes of TEXT in the streaming layout: something else."""
    audio = made_by_the_engine(folder, "streaming")
    assert audio != made_by_the_engine(folder, "whole")
    return audio


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


@pytest.mark.parametrize("mode", ["whole", "streaming"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_websocket_chunks_join_to_the_same_samples(
    live: Live, expected: bytes, streamed: bytes, mode: str, size: int
) -> None:
    with live.connect() as websocket:
        session = Session(websocket)
        options = {"voice": "vivian", "language": "english", "seed": 7, "max_frames": 9}
        session.send("session.config", **options, chunk=2, text_mode=mode)
        for start in range(0, len(TEXT), size):
            session.send("input.text", text=TEXT[start : start + size])
        session.send("input.done")
        done, audio = session.until("audio.done")
        session.until("session.done")
    assert audio == (expected if mode == "whole" else streamed)
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


@pytest.mark.parametrize("text", ["Huh?", "200度烤15分钟，撒蒜蓉。"])
def test_speech_that_never_ends_is_cut_and_told(folder: Path, text: str) -> None:
    """Greedy random weights go on for ever."""
    body = {"text": text, "voice": "vivian", "temperature": 0, "cp_temperature": 0}

    def load(_: Settings) -> EngineModel:
        return EngineModel(Model.load(folder), guard=Guard(eos_boost=0.0))

    with serving(load=load, model=folder, guard_retries=1, max_audio_s=48.0) as live:
        response = live.post(body)
        assert response.headers["x-kazeia-ended"] in ("runaway", "repetition")
        frames = int(response.headers["x-kazeia-frames"])
        assert 40 <= frames < 600
        assert "before the speech ended by itself" in response.headers["x-kazeia-warnings"]
        metrics = live.get("/metrics").text
        ended = response.headers["x-kazeia-ended"]
        assert f'kazeia_finish_total{{reason="{ended}"}} 1.0' in metrics
        assert "kazeia_retries_total 0.0" in metrics  # without chance a second try is the same
    with serving(load=load_model, model=folder, guard=False, max_audio_s=48.0) as live:
        response = live.post(body)  # the control
        assert response.headers["x-kazeia-ended"] == "max_frames"
        assert response.headers["x-kazeia-frames"] == "600"
