"""The built-in English voice (PyPI `hibari-tts`): what speaks when no model is configured."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kazeia_server.errors import EngineFailure, InvalidRequest, UnknownVoice, VoiceLoadError
from kazeia_server.logging_ import logger
from kazeia_server.voices.backend import (
    AudioChunk,
    BackendInfo,
    Ended,
    SynthesisStats,
    VoiceRequest,
)

__all__ = ["BuiltinStream", "BuiltinVoice", "describe_builtin"]

SAMPLES_PER_FRAME = 1920  # 80 ms, the frame of the Qwen3-TTS codec, so that limits mean the same
_AUTO_CHUNK_FRAMES = 6
_FIRST_PIECE_CHARS = 40  # its work before the first sound grows with the length of the phrase
_FOREIGN_SHARE = 0.1
_PIECE_PHONEMES = 240  # about 20 s of speech: how long a cancellation can have to wait

# The voice's grapheme-to-phoneme step is cubic in the length of a word and fails beyond 36 digits.
_LONG_WORD = re.compile(r"\S{32}(?=\S)")
_LONG_NUMBER = re.compile(r"\d{12}(?=\d)")
_NOT_PLAIN = re.compile(r"[^A-Za-z' ]+")


def describe_builtin() -> BackendInfo:
    """Facts about the voice, without loading it.

    Raises VoiceLoadError when hibari-tts is not installed.
    """
    try:
        import hibari.voices
    except ImportError as error:
        raise VoiceLoadError(f"the built-in voice needs hibari-tts: {error}") from None
    return BackendInfo(
        name="hibari",
        source="built-in",
        kind="built-in",
        voices=tuple(name for name in hibari.voices.VOICES if _is_local(name)),
        default_voice=hibari.voices.DEFAULT,
        languages=("english",),
        sample_rate=24_000,
        samples_per_frame=SAMPLES_PER_FRAME,
        default_max_frames=None,
        follows_instructions=False,
        reads_symbols=False,
        first_piece_chars=_FIRST_PIECE_CHARS,
    )


class BuiltinVoice:
    """hibari behind the SynthesisBackend interface.

    Phrases are made one by one, each leaves as soon as it is ready.
    """

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: at most so many for a phrase; None: two, where there are two cores."""
        self._threads = min(2, threads or len(os.sched_getaffinity(0)))
        self._info = describe_builtin()
        self._names = self._info.voices
        self._speakers: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._speaker(str(self._info.default_voice))

    @property
    def info(self) -> BackendInfo:
        """Facts about the voice."""
        return self._info

    def open(self, request: VoiceRequest) -> BuiltinStream:
        """Start an utterance; nothing is computed before the first read."""
        name = request.voice or str(self._info.default_voice)
        if name not in self._names:
            raise UnknownVoice(
                f"unknown voice {name!r}; the built-in voice has {', '.join(self._names)}",
                param="voice",
            )
        return BuiltinStream(self._speaker(name), request)

    def open_live(self, request: VoiceRequest) -> NoReturn:
        """Not offered: a phrase is made as a whole."""
        raise EngineFailure("the built-in voice takes no live text")

    def close(self) -> None:
        """Forget the loaded voices; open streams keep theirs until they end."""
        with self._lock:
            self._speakers.clear()

    def _speaker(self, name: str) -> Any:
        # ONNX Runtime, which hibari uses, reports to its maker unless told not to when it starts.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import hibari

        with self._lock:
            if name not in self._speakers:
                self._speakers[name] = hibari.Hibari(voice=name, threads=self._threads)
            return self._speakers[name]


def _is_local(name: str) -> bool:
    """Whether the voice can be used without a download."""
    import hibari.voices

    try:
        hibari.voices.voice_path(name, download_missing=False)
    except FileNotFoundError:
        return False
    return True


class BuiltinStream:
    """One utterance of the built-in voice."""

    def __init__(self, speaker: Any, request: VoiceRequest) -> None:
        self._speaker = speaker
        self._request = request
        self._cancelled = threading.Event()
        self._opened = time.perf_counter()
        self._ttfb_s: float | None = None
        self._work_s = 0.0
        self._samples = 0
        self._n_chunks = 0
        self._ended: Ended | None = None
        self._warnings: list[str] = []
        if request.instruct is not None:
            self._warnings.append("the built-in voice does not follow instructions")
        letters = [char for char in request.text if char.isalpha()]
        if sum(not char.isascii() for char in letters) > _FOREIGN_SHARE * len(letters):
            self._warnings.append("the built-in voice reads everything as English")
        self._chunks = self._generate()

    def read(self) -> AudioChunk | None:
        """Block until the next chunk; None at the end.

        Raises InvalidRequest when nothing in the text can be spoken in English.
        """
        if self._cancelled.is_set():
            self._ended = self._ended or "cancelled"
            return None
        pcm = next(self._chunks, None)
        if pcm is None:
            return None
        if self._ttfb_s is None:
            self._ttfb_s = time.perf_counter() - self._opened
        self._n_chunks += 1
        self._samples += len(pcm)
        return AudioChunk(pcm)

    def cancel(self) -> None:
        """Stop after the sentence being made."""
        self._cancelled.set()

    def close(self) -> None:
        """Drop what is left."""
        self._chunks.close()

    @property
    def stats(self) -> SynthesisStats:
        """Final figures."""
        audio_s = self._samples / self._speaker.sample_rate
        return SynthesisStats(
            ended=self._ended or "cancelled",
            audio_s=audio_s,
            frames=-(-self._samples // SAMPLES_PER_FRAME),
            n_chunks=self._n_chunks,
            ttfb_s=self._ttfb_s,
            rtf=self._work_s / audio_s if audio_s else None,
            warnings=tuple(self._warnings),
        )

    def _generate(self) -> Generator[npt.NDArray[np.float32], None, None]:
        """Chunks of the utterance; sets `_ended`."""
        left = (self._request.max_frames or 1 << 62) * SAMPLES_PER_FRAME
        held: list[npt.NDArray[np.float32]] = []
        for pcm in self._sentences():
            if self._cancelled.is_set():
                self._ended = "cancelled"
                return
            pcm, cut = pcm[:left], len(pcm) > left
            left -= len(pcm)
            if self._request.chunk == 0:
                held.append(pcm)
            else:
                yield from _slices(pcm, self._request.chunk)
            if cut:
                self._ended = "max_frames"
                self._warnings.append("the audio was cut at max_frames")
                break
        if held:
            yield np.concatenate(held)
        self._ended = self._ended or "eos"

    def _sentences(self) -> Iterator[npt.NDArray[np.float32]]:
        """Audio of one phrase of the text after another."""
        spoken = False
        begun = time.perf_counter()
        phrases = self._phonemes(self._request.text)
        self._work_s += time.perf_counter() - begun
        for index, phonemes in enumerate(phrases):
            if self._cancelled.is_set():
                self._ended = "cancelled"
                return
            begun = time.perf_counter()
            rng = np.random.default_rng((self._request.seed, index))
            try:
                pcm = self._speaker.from_ids(self._speaker.ids(phonemes), rng=rng)
            except Exception as error:
                raise EngineFailure(f"the built-in voice failed: {error}") from error
            self._work_s += time.perf_counter() - begun
            if len(pcm):
                spoken = True
                yield np.asarray(pcm, dtype=np.float32)
        if not spoken and not self._cancelled.is_set():
            raise InvalidRequest(
                "the built-in voice speaks English and found nothing to say in this text",
                param="text",
            )

    def _phonemes(self, piece: str) -> list[str]:
        """Phoneme strings of a piece of text, short enough to be made without a long wait."""
        piece = _LONG_NUMBER.sub(r"\g<0> ", _LONG_WORD.sub(r"\g<0> ", piece))
        try:
            phrases = self._speaker.phonemize(piece)
        except Exception:  # its rules do not cover every spelling; the letters alone always work
            logger.debug("the built-in voice could not read a piece as written", exc_info=True)
            self._warnings.append("a passage could not be read as written; its words were spoken")
            phrases = self._speaker.phonemize(_NOT_PLAIN.sub(" ", piece))
        return [part for phrase in phrases for part in _cut_phonemes(phrase)]


def _cut_phonemes(phrase: str) -> Iterator[str]:
    """The phrase in parts of at most _PIECE_PHONEMES, cut at spaces where there are any."""
    while len(phrase) > _PIECE_PHONEMES:
        space = phrase.rfind(" ", _PIECE_PHONEMES // 3, _PIECE_PHONEMES)
        cut = space if space > 0 else _PIECE_PHONEMES
        yield phrase[:cut]
        phrase = phrase[cut:].lstrip(" ")
    if phrase:
        yield phrase


def _slices(pcm: npt.NDArray[np.float32], chunk: int | str) -> Iterator[npt.NDArray[np.float32]]:
    frames = chunk if isinstance(chunk, int) else _AUTO_CHUNK_FRAMES
    step = frames * SAMPLES_PER_FRAME
    for start in range(0, len(pcm), step):
        yield pcm[start : start + step]
