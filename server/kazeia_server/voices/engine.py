"""The one door to `kazeia_engine`: a Qwen3-TTS model behind the SynthesisBackend interface.

Nothing else of this package imports the engine, and this module imports it only when used, so
that a machine without a model, or without the compiled library, still speaks and serves.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kazeia_server.errors import (
    EngineFailure,
    InvalidRequest,
    ServerError,
    ShuttingDown,
    UnknownLanguage,
    UnknownVoice,
    VoiceLoadError,
)
from kazeia_server.logging_ import logger
from kazeia_server.voices.backend import AudioChunk, BackendInfo, SynthesisStats, VoiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kazeia_engine.devices import Device
    from kazeia_engine.types import Guard, ModelInfo, Result
    from kazeia_server.settings import Settings

__all__ = ["EngineModel", "EngineStream", "describe_model", "load_model"]

_PREFERRED_SPEAKER = "vivian"


def load_model(settings: Settings) -> EngineModel:
    """Load the Qwen3-TTS model that the settings name.

    Raises VoiceLoadError saying what is wrong with the files or the installation.
    """
    path = settings.model
    if path is None or not path.exists():
        raise VoiceLoadError(
            f"there is no model at {path}: expected a folder with two GGUF files, as "
            "`kazeia convert` and `kazeia synth` make them"
        )
    try:
        from kazeia_engine import Devices, Guard, Model
        from kazeia_engine.devices import auto_device
        from kazeia_engine.errors import KazeiaError
    except (ImportError, OSError) as error:
        raise VoiceLoadError(f"the engine cannot be used: {error}") from error
    try:
        devices = Devices(
            settings.device_talker, settings.device_cp, settings.device_decoder, settings.max_rows
        )
        if "auto" in map(str.lower, (devices.talker, devices.cp, devices.decoder)):
            _tell_choice(auto_device())
        model = Model.load(path, threads=settings.threads, devices=devices)
    except (KazeiaError, OSError) as error:
        raise VoiceLoadError(str(error)) from error
    guard = None
    if settings.guard:
        guard = Guard(
            frames_per_token=settings.guard_frames_per_token,
            min_frames=settings.guard_min_frames,
            silence_frames=round(settings.guard_silence_s * model.info.frame_rate),
        )
    return EngineModel(model, cp_cache=settings.cp_cache, guard=guard)


def _tell_choice(gpu: Device | None) -> None:
    if gpu is None:
        logger.warning(
            "device auto: llama-cpp-python sees no GPU, so the processor computes everything"
        )
    else:
        logger.info("device auto: %s (%s)", gpu.name, gpu.description)


def describe_model(path: Path) -> BackendInfo:
    """Facts about the model in `path`, from the head of its file: sooner than it is loaded.

    Raises VoiceLoadError as load_model does.
    """
    try:
        from kazeia_engine.errors import KazeiaError
        from kazeia_engine.modelfiles import find_pair
        from kazeia_engine.vocabulary import ModelVocabulary
    except (ImportError, OSError) as error:
        raise VoiceLoadError(f"the engine cannot be used: {error}") from error
    try:
        return _backend_info(ModelVocabulary.load(find_pair(path).talker).info())
    except (KazeiaError, OSError) as error:
        raise VoiceLoadError(str(error)) from error


def _backend_info(info: ModelInfo) -> BackendInfo:
    from kazeia_engine.options import default_options

    speakers = tuple(info.speakers)
    first = next(iter(speakers), None)
    return BackendInfo(
        name=info.name,
        source="qwen3-tts",
        kind=info.kind,
        voices=speakers,
        default_voice=_PREFERRED_SPEAKER if _PREFERRED_SPEAKER in speakers else first,
        languages=tuple(name for name in info.languages if name != "auto"),
        sample_rate=info.sample_rate,
        samples_per_frame=round(info.sample_rate / info.frame_rate),
        default_max_frames=default_options()["max_frames"],
        follows_instructions=info.follows_instructions,
        takes_live_text=True,
    )


class EngineModel:
    """A loaded model; see SynthesisBackend.

    `cp_cache=False` has the code predictor recompute everything: slow, the same audio.
    `guard` ends speech that does not end by itself.
    """

    def __init__(self, model: Any, *, cp_cache: bool = True, guard: Guard | None = None) -> None:
        self._model = model
        self._cp_cache = cp_cache
        self._guard = guard
        self._info = _backend_info(model.info)

    @property
    def info(self) -> BackendInfo:
        """Facts about the model."""
        return self._info

    def open(self, request: VoiceRequest) -> EngineStream:
        """Start an utterance in the engine."""
        with _translated():
            stream = self._model.stream(
                request.text, text_mode=request.text_mode, **self._options(request)
            )
        return EngineStream(stream)

    def open_live(self, request: VoiceRequest) -> EngineStream:
        """Start an utterance whose text is pushed while it is spoken."""
        with _translated():
            return EngineStream(self._model.stream_live(**self._options(request)))

    def close(self) -> None:
        """Cancel and join everything that runs, and free the model."""
        self._model.close()

    def _options(self, request: VoiceRequest) -> dict[str, Any]:
        """The engine's options: what is given; the rest is as the engine does it."""
        options = {
            "speaker": request.voice,
            "language": request.language,
            "instruct": request.instruct,
            "seed": request.seed,
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "repetition_penalty": request.repetition_penalty,
            "cp_temperature": request.cp_temperature,
            "cp_top_k": request.cp_top_k,
            "cp_top_p": request.cp_top_p,
            "max_frames": request.max_frames,
            "chunk": request.chunk,
            "cp_cache": self._cp_cache,
            "guard": self._guard,
        }
        return {name: value for name, value in options.items() if value is not None}


class EngineStream:
    """One utterance of the engine."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._samples = 0  # the stream's own result keeps no audio

    def push_text(self, text: str) -> None:
        """Append text to an utterance of open_live."""
        with _translated():
            self._stream.push_text(text)

    def settle_text(self) -> None:
        """What is pushed next begins with a space or punctuation, if anything is."""
        with _translated():
            self._stream.settle_text()

    def finish_text(self) -> None:
        """The text of an utterance of open_live is complete."""
        with _translated():
            self._stream.finish_text()

    def read(self) -> AudioChunk | None:
        """Block until the next chunk; None at the end."""
        with _translated():
            chunk = next(self._stream, None)
        if chunk is None:
            return None
        self._samples += len(chunk.pcm)
        return AudioChunk(chunk.pcm)

    def cancel(self) -> None:
        """Stop within a frame; a blocked read returns None."""
        self._stream.close()

    def close(self) -> None:
        """Free the stream."""
        self._stream.close()

    @property
    def stats(self) -> SynthesisStats:
        """Final figures."""
        with _translated():
            result: Result = self._stream.result
        return SynthesisStats(
            ended=result.ended,
            audio_s=self._samples / result.sample_rate,
            frames=len(result.codes),
            n_chunks=result.n_chunks,
            ttfb_s=_finite(result.ttfb_s),
            rtf=_finite(result.rtf),
            stages={k: v for k, v in result.stages.items() if math.isfinite(v)},
            warnings=tuple(result.warnings),
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the engine's exceptions into the server's."""
    from kazeia_engine import errors

    try:
        yield
    except ServerError:
        raise
    except errors.UnknownSpeaker as error:
        raise UnknownVoice(str(error), param="voice") from error
    except errors.UnknownLanguage as error:
        raise UnknownLanguage(str(error), param="language") from error
    except errors.InvalidInput as error:
        raise InvalidRequest(str(error), param=error.param) from error
    except errors.EngineClosed as error:
        raise ShuttingDown("the model is being closed") from error
    except errors.KazeiaError as error:
        raise EngineFailure(str(error)) from error
