"""The engine's adapter, against a stand-in with the surface of `kazeia_engine.Model`."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_voice import FakeVoice

import kazeia_server
from kazeia_engine import errors as engine_errors
from kazeia_engine.devices import Device
from kazeia_engine.types import Chunk, ModelInfo, Result
from kazeia_server.doors.fields import SpeechOptions
from kazeia_server.errors import (
    EngineFailure,
    InvalidRequest,
    ShuttingDown,
    UnknownLanguage,
    UnknownVoice,
    VoiceLoadError,
)
from kazeia_server.logging_ import logger
from kazeia_server.settings import Settings
from kazeia_server.synthesis.check import check_request
from kazeia_server.voices import engine
from kazeia_server.voices.backend import VoiceRequest
from kazeia_server.voices.engine import EngineModel, load_model


class StandInStream:
    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.made = 0
        self.cancelled = threading.Event()
        self.error: Exception | None = None

    def __iter__(self) -> StandInStream:
        return self

    def __next__(self) -> Chunk:
        if self.error is not None:
            raise self.error
        if self.cancelled.is_set() or self.made == self.frames:
            raise StopIteration
        self.made += 1
        pcm = np.full(1920, 0.25, dtype=np.float32)
        return Chunk(pcm, self.made - 1, self.made - 1, 1, 0.1 * self.made)

    def close(self) -> None:
        self.cancelled.set()

    @property
    def result(self) -> Result:
        return Result(
            pcm=np.zeros(0, dtype=np.float32),  # a stream keeps no audio
            sample_rate=24_000,
            codes=np.zeros((self.made, 16), dtype=np.int32),
            ended="cancelled" if self.made < self.frames else "eos",
            ttfb_s=0.1 if self.made else float("nan"),
            n_chunks=self.made,
            rtf=0.7 if self.made else float("nan"),
            stages={"cp": 0.1, "talker": float("nan")},
            warnings=("the instruction was dropped",),
        )


class StandInModel:
    def __init__(self, speakers: tuple[str, ...] = ("serena", "vivian")) -> None:
        self.info = ModelInfo(
            name="tiny",
            kind="custom_voice",
            speakers=speakers,
            languages=("auto", "chinese", "english"),
            sample_rate=24_000,
            frame_rate=12.5,
        )
        self.asked: dict[str, Any] = {}
        self.error: Exception | None = None
        self.current = StandInStream(3)
        self.closed = False

    def stream(self, text: str, **options: Any) -> StandInStream:
        if self.error is not None:
            raise self.error
        self.asked = {"text": text, **options}
        return self.current

    def close(self) -> None:
        self.closed = True


def test_info_is_carried_over() -> None:
    info = EngineModel(StandInModel()).info
    assert (info.name, info.source, info.kind) == ("tiny", "qwen3-tts", "custom_voice")
    assert (info.default_voice, info.voices) == ("vivian", ("serena", "vivian"))
    assert info.languages == ("chinese", "english")
    assert (info.sample_rate, info.samples_per_frame) == (24_000, 1920)
    assert EngineModel(StandInModel(("anna",))).info.default_voice == "anna"
    assert EngineModel(StandInModel(())).info.default_voice is None
    assert info.default_max_frames == 2048  # of Model.stream


def test_every_parameter_is_handed_on() -> None:
    model = StandInModel()
    request = VoiceRequest(
        text="Hi.",
        voice="serena",
        language="english",
        instruct="softly",
        seed=5,
        temperature=0.1,
        top_k=2,
        top_p=0.3,
        repetition_penalty=1.4,
        cp_temperature=0.5,
        cp_top_k=6,
        cp_top_p=0.7,
        text_mode="whole",
        max_frames=8,
        chunk=9,
    )
    EngineModel(model).open(request)
    expected = {name: getattr(request, name) for name in VoiceRequest.__dataclass_fields__}
    expected["speaker"] = expected.pop("voice")
    assert model.asked == {**expected, "cp_cache": True}
    EngineModel(model, cp_cache=False).open(request)
    assert model.asked["cp_cache"] is False


def test_what_is_not_given_is_left_to_the_engine() -> None:
    model = StandInModel()
    EngineModel(model).open(VoiceRequest(text="Hi."))
    assert model.asked == {
        "text": "Hi.",
        "text_mode": "auto",
        "language": "auto",
        "seed": 0,
        "chunk": "auto",
        "cp_cache": True,
    }
    plain = SpeechOptions().request("Hi.", Settings())
    EngineModel(model).open(check_request(plain, FakeVoice().info, Settings()))
    sampling = ("temperature", "top_k", "top_p", "repetition_penalty")
    assert not {*sampling, "cp_temperature", "cp_top_k", "cp_top_p"} & set(model.asked)


def test_chunks_and_figures() -> None:
    stream = EngineModel(StandInModel()).open(VoiceRequest(text="Hi."))
    chunks = []
    while (chunk := stream.read()) is not None:
        chunks.append(chunk.pcm)
    assert [len(pcm) for pcm in chunks] == [1920] * 3
    stats = stream.stats
    assert (stats.ended, stats.frames, stats.n_chunks) == ("eos", 3, 3)
    assert (stats.ttfb_s, stats.rtf) == (0.1, 0.7)
    assert stats.audio_s == pytest.approx(0.24)
    assert stats.stages == {"cp": 0.1}
    assert stats.warnings == ("the instruction was dropped",)
    stream.close()


def test_cancelled_before_any_sound() -> None:
    stream = EngineModel(StandInModel()).open(VoiceRequest(text="Hi."))
    stream.cancel()
    assert stream.read() is None
    assert stream.stats.ended == "cancelled"
    assert (stream.stats.ttfb_s, stream.stats.rtf) == (None, None)


@pytest.mark.parametrize(
    ("make", "expected", "param"),
    [
        (lambda: engine_errors.UnknownSpeaker("has a, b", param="speaker"), UnknownVoice, "voice"),
        (lambda: engine_errors.UnknownLanguage("has x"), UnknownLanguage, "language"),
        (lambda: engine_errors.InvalidInput("text is ...", param="text"), InvalidRequest, "text"),
        (lambda: engine_errors.EngineClosed("closed"), ShuttingDown, None),
        (lambda: engine_errors.EngineError("NaN in talker"), EngineFailure, None),
    ],
)
def test_errors_are_translated(
    make: Callable[[], Exception], expected: type[Exception], param: str | None
) -> None:
    model = StandInModel()
    model.error = make()
    with pytest.raises(expected) as caught:
        EngineModel(model).open(VoiceRequest(text="Hi."))
    assert getattr(caught.value, "param", None) == param
    model.error = None
    stream = EngineModel(model).open(VoiceRequest(text="Hi."))
    model.current.error = make()
    with pytest.raises(expected):
        stream.read()


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(VoiceLoadError, match="there is no model at"):
        load_model(Settings(model=tmp_path / "nothing"))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(VoiceLoadError):
        load_model(Settings(model=tmp_path))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(Device("Vulkan0", "a device", "gpu", 0, 0, True), "INFO"), (None, "WARNING")],
)
def test_what_auto_has_chosen_is_told(
    caplog: pytest.LogCaptureFixture, chosen: Device | None, expected: str
) -> None:
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level("INFO", logger=logger.name):
            engine._tell_choice(chosen)
    finally:
        logger.removeHandler(caplog.handler)
    ((level, message),) = {(r.levelname, r.getMessage()) for r in caplog.records}
    assert level == expected
    assert ("Vulkan0" in message) == (expected == "INFO")


def test_who_imports_the_engine() -> None:
    importers: dict[str, set[str]] = {}
    for path in Path(kazeia_server.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                if name.partition(".")[0] == "kazeia_engine":
                    importers.setdefault(path.name, set()).add(name)
    assert importers.keys() == {"engine.py", "cli.py"}
    assert importers["cli.py"] == {"kazeia_engine.processor", "kazeia_engine.tools.cli"}
