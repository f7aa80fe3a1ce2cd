"""From text to bytes: pieces, silence, pauses, joins, retries."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_voice import FakeLiveStream, FakeVoice
from live import until

from kazeia_server.audio.pcm import pcm16
from kazeia_server.settings import Settings
from kazeia_server.synthesis.pieces import LiveText, Piece, TextFront
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.synthesis.speaker import Speaker
from kazeia_server.voices.backend import (
    AudioChunk,
    BackendInfo,
    Ended,
    SynthesisStats,
    VoiceRequest,
)

RATE = 24_000
FRAME = 1920
Samples = npt.NDArray[np.float32]


def tone(frames: int = 1, level: float = 0.5) -> Samples:
    t = np.arange(frames * FRAME, dtype=np.float32) / RATE
    return (level * np.cos(2 * np.pi * 400 * t)).astype(np.float32)


def silence(frames: int = 1) -> Samples:
    return np.zeros(frames * FRAME, np.float32)


INFO = BackendInfo(
    name="script",
    source="qwen3-tts",
    kind="custom_voice",
    voices=("anna",),
    default_voice="anna",
    languages=(),
    sample_rate=RATE,
    samples_per_frame=FRAME,
    default_max_frames=2048,
    follows_instructions=False,
)


@dataclass
class Take:
    """What the voice makes of one request."""

    chunks: list[Samples]
    ended: Ended = "eos"


@dataclass
class Script:
    """A voice that plays takes in order."""

    takes: list[Take]
    requests: list[VoiceRequest] = field(default_factory=list)
    info: BackendInfo = INFO

    def open(self, request: VoiceRequest) -> Reading:
        self.requests.append(request)
        return Reading(self.takes[len(self.requests) - 1])

    def open_live(self, request: VoiceRequest) -> Any:
        raise AssertionError("not asked for")

    def close(self) -> None:
        pass


class Reading:
    def __init__(self, take: Take) -> None:
        self.take = take
        self.chunks = iter(take.chunks)

    def read(self) -> AudioChunk | None:
        chunk = next(self.chunks, None)
        return None if chunk is None else AudioChunk(chunk)

    def cancel(self) -> None:
        self.chunks = iter(())

    def close(self) -> None:
        pass

    @property
    def stats(self) -> SynthesisStats:
        n = sum(map(len, self.take.chunks))
        return SynthesisStats(
            ended=self.take.ended,
            audio_s=n / RATE,
            frames=n // FRAME,
            n_chunks=len(self.take.chunks),
            ttfb_s=0.1,
            rtf=0.5,
            stages={"talker": 1.0},
        )


class Given:
    """Pieces as a source."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = iter(pieces)

    def next(self) -> Piece | None:
        return next(self.pieces, None)

    def cancel(self) -> None:
        self.pieces = iter(())


def speak(
    takes: list[Take],
    pieces: list[Piece] | None = None,
    *,
    hold: bool = False,
    request: SynthesisRequest | None = None,
    **settings: Any,
) -> tuple[Samples, SynthesisStats, Script, list[bytes]]:
    voice = Script(takes)
    request = request or SynthesisRequest(text="x", max_frames=10_000)
    pieces = [Piece("One.", "sentence")] if pieces is None else pieces
    speaker = Speaker(voice, request, Given(pieces), Settings(**settings), live=False, hold=hold)
    parts = list(speaker)
    return np.frombuffer(b"".join(parts), "<i2") / np.float32(32767), speaker.stats, voice, parts


def test_one_piece_passes_bit_true() -> None:
    chunks = [tone(1), tone(2, 0.3)]
    heard, stats, voice, parts = speak([Take(chunks)])
    assert b"".join(parts) == b"".join(map(pcm16, chunks))
    assert (stats.ended, stats.frames, stats.n_chunks, stats.pieces) == ("eos", 3, 2, 1)
    assert stats.audio_s == pytest.approx(0.24)
    assert stats.rtf == pytest.approx(0.5)
    assert stats.stages == {"talker": 1.0}
    assert voice.requests[0].text == "One."
    assert len(heard) == 3 * FRAME


@pytest.mark.parametrize("first", [0, 1, 479, 480, 481, 1919, 1920, 3000])
def test_silence_before_the_first_sound_is_dropped_but_its_last_20_ms(first: int) -> None:
    audio = np.concatenate((np.full(first, 0.001, np.float32), tone(2)))
    for size in (100, 480, 1920, len(audio)):
        chunks = [audio[i : i + size] for i in range(0, len(audio), size)]
        heard, _, _, parts = speak([Take(chunks)])
        assert b"".join(parts) == pcm16(audio[max(0, first - 480) :])
    assert len(heard) == min(first, 480) + 2 * FRAME
    kept, *_ = speak([Take([audio])], trim_silence=False)
    assert len(kept) == first + 2 * FRAME


@pytest.mark.parametrize(
    ("pause", "seconds"), [("sentence", 0.25), ("paragraph", 0.6), ("none", 0.0)]
)
@pytest.mark.parametrize("tail", [0, 2])
def test_pauses_count_the_silence_that_is_there(pause: Any, seconds: float, tail: int) -> None:
    pieces = [Piece("One.", pause), Piece("Two.", "sentence")]
    takes = [Take([tone(2), silence(tail)]), Take([silence(3), tone(1)])]
    heard, stats, _, _ = speak(takes, pieces)
    quiet = np.abs(heard) < 0.004
    quiet[: 2 * FRAME - 30] = False
    quiet[-FRAME + 100 :] = False
    gap = quiet.sum() / RATE
    lead = 0.02  # of the second piece, kept
    assert gap == pytest.approx(max(seconds, tail * 0.08) + lead, abs=0.006)
    assert stats.pieces == 2


def test_joins_do_not_click() -> None:
    """Pieces that end and begin in full swing meet without a step; the control does step."""
    end, begin = tone(1), tone(1)
    cut = end[:-15]  # ends near a crest
    heard, *_ = speak([Take([cut]), Take([begin])], [Piece("a", "none"), Piece("b", "sentence")])
    own = np.abs(np.diff(begin)).max()
    assert np.abs(np.diff(np.concatenate((cut, -begin)))).max() > 5 * own
    assert np.abs(np.diff(heard)).max() < 1.5 * own


def test_a_piece_cut_by_its_guard_is_tried_again_while_nothing_was_heard() -> None:
    bad = Take([silence(50)], "silence")
    heard, stats, voice, _ = speak(
        [bad, bad, Take([tone(2)])], request=SynthesisRequest(text="x", seed=7)
    )
    assert [request.seed for request in voice.requests] == [7, 8, 9]
    assert len(heard) == 2 * FRAME
    assert (stats.ended, stats.retries, stats.frames) == ("eos", 2, 2)


def test_a_piece_that_was_heard_is_not_tried_again() -> None:
    bad = Take([tone(2), silence(50)], "silence")
    heard, stats, voice, _ = speak([bad])
    assert len(voice.requests) == 1
    assert len(heard) == 52 * FRAME
    assert (stats.ended, stats.retries) == ("silence", 0)


def test_what_is_held_back_is_tried_again_although_it_sounds() -> None:
    bad = Take([tone(60)], "runaway")
    heard, stats, voice, _ = speak([bad, Take([tone(2)])], hold=True)
    assert len(voice.requests) == 2
    assert len(heard) == 2 * FRAME
    assert (stats.ended, stats.retries) == ("eos", 1)
    kept, stats, voice, _ = speak([bad, bad, bad], hold=True)
    assert len(voice.requests) == 3
    assert len(kept) == 60 * FRAME
    assert (stats.ended, stats.retries) == ("runaway", 2)
    _, stats, voice, _ = speak([bad], hold=True, guard_retries=0)
    assert (len(voice.requests), stats.ended) == (1, "runaway")


def test_a_guard_in_one_piece_does_not_end_the_others() -> None:
    pieces = [Piece("a.", "sentence"), Piece("b.", "sentence")]
    heard, stats, _, _ = speak([Take([tone(5)], "repetition"), Take([tone(2)])], pieces)
    assert len(heard) > 7 * FRAME
    assert (stats.ended, stats.pieces, stats.frames) == ("repetition", 2, 7)


def test_max_frames_is_of_the_whole_utterance() -> None:
    pieces = [Piece(t, "sentence") for t in ("a.", "b.", "c.")]
    takes = [Take([tone(3)]), Take([tone(2)], "max_frames"), Take([tone(9)])]
    _, stats, voice, _ = speak(takes, pieces, request=SynthesisRequest(text="x", max_frames=5))
    assert [request.max_frames for request in voice.requests] == [5, 2]
    assert (stats.ended, stats.frames) == ("max_frames", 5)
    _, stats, voice, _ = speak(
        [Take([tone(5)]), Take([tone(1)])],
        pieces[:2],
        request=SynthesisRequest(text="x", max_frames=5),
    )
    assert len(voice.requests) == 1
    assert stats.ended == "max_frames"


def test_nothing_to_say_is_a_short_silence() -> None:
    heard, stats, voice, _ = speak([], [])
    assert not voice.requests
    assert (stats.ended, stats.pieces, stats.rtf) == ("empty", 0, None)
    assert len(heard) == round(0.2 * RATE)
    assert not heard.any()


def test_speed_changes_the_length_of_all() -> None:
    pieces = [Piece("a.", "sentence"), Piece("b.", "sentence")]
    plain, normal, _, _ = speak([Take([tone(10)]), Take([tone(10)])], pieces)
    pieces = [Piece("a.", "sentence"), Piece("b.", "sentence")]
    fast, stats, _, _ = speak(
        [Take([tone(10)]), Take([tone(10)])], pieces, request=SynthesisRequest(text="x", speed=2.0)
    )
    assert len(fast) == pytest.approx(len(plain) / 2, rel=0.05)
    assert stats.audio_s == pytest.approx(normal.audio_s / 2)


class SlowStream(FakeLiveStream):
    """A voice that takes its time over the text of one of its pushes."""

    pushes = 0

    def push_text(self, text: str) -> None:
        assert isinstance(self.voice, SlowVoice)
        self.pushes += 1
        if self.pushes == self.voice.slow_at:
            self.voice.inside.set()
            assert self.voice.go_on.wait(20)
        super().push_text(text)


class SlowVoice(FakeVoice):
    def __init__(self, slow_at: int) -> None:
        super().__init__()
        self.slow_at = slow_at
        self.inside, self.go_on = threading.Event(), threading.Event()

    def open_live(self, request: VoiceRequest) -> FakeLiveStream:
        stream = SlowStream(self, request)
        self.streams.append(stream)
        return stream


@pytest.mark.parametrize("slow_at", [1, 2], ids=["first-text", "more-text"])
def test_cancel_does_not_wait_for_a_text_that_is_being_read(slow_at: int) -> None:
    """It is called on the event loop: every connection would wait with it."""
    voice = SlowVoice(slow_at)
    text = LiveText(
        TextFront(voice.info, language="english", clean=True, split="auto", live=True), 60
    )
    request = SynthesisRequest(text="")
    speaker = Speaker(voice, request, text, Settings(), live=True, hold=False)
    speaking = threading.Thread(target=lambda: list(speaker))
    speaking.start()
    text.push("Hello there ")
    if slow_at == 2:
        until(lambda: bool(voice.streams) and "Hello" in voice.texts[0])
    text.push("big wide world ")
    assert voice.inside.wait(10)
    cancelling = threading.Thread(target=speaker.cancel)
    cancelling.start()
    cancelling.join(10)
    waited = cancelling.is_alive()
    voice.go_on.set()
    speaking.join(10)
    assert not waited
    assert not speaking.is_alive()


def test_cancel_ends_between_chunks() -> None:
    voice = Script([Take([tone(1)] * 100)])
    speaker = Speaker(
        voice,
        SynthesisRequest(text="x"),
        Given([Piece("a.", "sentence"), Piece("b.", "sentence")]),
        Settings(),
        live=False,
        hold=False,
    )
    parts = []
    for data in speaker:
        parts.append(data)
        if len(parts) == 3:
            speaker.cancel()
    assert len(parts) == 3
    assert len(voice.requests) == 1
    assert speaker.stats.ended == "cancelled"
