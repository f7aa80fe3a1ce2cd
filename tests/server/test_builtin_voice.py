from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from kazeia_server.errors import InvalidRequest, UnknownVoice
from kazeia_server.voices.backend import VoiceRequest
from kazeia_server.voices.builtin import SAMPLES_PER_FRAME, BuiltinStream, BuiltinVoice

LONG = "The first sentence is here. The second one follows it. And then there is a third."


@pytest.fixture(scope="module")
def voice() -> BuiltinVoice:
    return BuiltinVoice()


def read_all(stream: BuiltinStream) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    chunks = []
    while (chunk := stream.read()) is not None:
        chunks.append(chunk.pcm)
    return chunks


def speech(voice: BuiltinVoice, text: str, **options: object) -> np.ndarray[..., ...]:
    return np.concatenate(read_all(voice.open(VoiceRequest(text=text, **options))))  # type: ignore[arg-type]


def test_it_speaks(voice: BuiltinVoice) -> None:
    pcm = speech(voice, "Hello, this is a test.")
    assert pcm.dtype == np.float32
    seconds = len(pcm) / voice.info.sample_rate
    assert 1.0 < seconds < 4.0
    assert 0.1 < np.abs(pcm).max() <= 1.0
    # Speech, not hum or noise: loud and quiet stretches, most energy below 4 kHz.
    frames = pcm[: len(pcm) // 1920 * 1920].reshape(-1, 1920)
    loudness = np.sqrt((frames**2).mean(axis=1))
    assert loudness.max() > 5 * loudness.min() + 0.01
    spectrum = np.abs(np.fft.rfft(pcm)) ** 2
    hertz = np.fft.rfftfreq(len(pcm), 1 / voice.info.sample_rate)
    assert spectrum[hertz < 4000].sum() > 0.8 * spectrum.sum()


def test_the_first_sentence_is_out_before_the_last_is_made(voice: BuiltinVoice) -> None:
    stream = voice.open(VoiceRequest(text=LONG * 5))
    assert stream.read() is not None
    first = stream.stats
    read_all(stream)
    whole = stream.stats
    assert first.ttfb_s is not None
    assert whole.rtf is not None
    assert first.ttfb_s < 0.3 * whole.rtf * whole.audio_s
    assert whole.ended == "eos"
    assert whole.n_chunks > 15


def test_seed_decides_the_audio_and_chunking_does_not(voice: BuiltinVoice) -> None:
    reference = speech(voice, LONG, seed=3)
    assert np.array_equal(reference, speech(voice, LONG, seed=3))
    assert not np.array_equal(reference, speech(voice, LONG, seed=4))
    for chunk in (0, 1, 7):
        assert np.array_equal(reference, speech(voice, LONG, seed=3, chunk=chunk))


def test_chunk_sizes(voice: BuiltinVoice) -> None:
    assert len(read_all(voice.open(VoiceRequest(text=LONG, chunk=0)))) == 1
    sizes = {len(pcm) for pcm in read_all(voice.open(VoiceRequest(text=LONG, chunk=2)))}
    assert max(sizes) == 2 * SAMPLES_PER_FRAME


def test_max_frames_cuts_and_says_so(voice: BuiltinVoice) -> None:
    stream = voice.open(VoiceRequest(text=LONG, max_frames=5))
    pcm = np.concatenate(read_all(stream))
    assert len(pcm) == 5 * SAMPLES_PER_FRAME
    assert (stream.stats.ended, stream.stats.frames) == ("max_frames", 5)
    assert any("cut" in warning for warning in stream.stats.warnings)


def test_cancel_ends_a_long_text_soon(voice: BuiltinVoice) -> None:
    stream = voice.open(VoiceRequest(text=LONG * 200))
    assert stream.read() is not None
    begun = time.perf_counter()
    timer = threading.Timer(0.05, stream.cancel)
    timer.start()
    while stream.read() is not None:
        pass
    assert time.perf_counter() - begun < 5
    assert stream.stats.ended == "cancelled"
    assert stream.read() is None
    stream.close()
    timer.join()


def test_several_streams_at_once_do_not_disturb_each_other(voice: BuiltinVoice) -> None:
    texts = [LONG, "Twenty two numbers, 3.14 and $5.", "Completely unpronounceable zzxqv words."]
    expected = [speech(voice, text) for text in texts]
    found: list[object] = [None] * 3

    def work(n: int) -> None:
        found[n] = speech(voice, texts[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for n in range(3):
        assert np.array_equal(np.asarray(found[n]), expected[n])


@pytest.mark.parametrize("text", ["你好，世界", "***", "🙂", "\u200b.\u200b" * 0 + "***"])
def test_text_without_anything_to_say(voice: BuiltinVoice, text: str) -> None:
    with pytest.raises(InvalidRequest, match="English"):
        read_all(voice.open(VoiceRequest(text=text)))


@pytest.mark.parametrize(
    "unit",
    [
        "1",
        "A-",
        "x/",
        "aB",
        "'a",
        "100,",
        "a",
        "V",
        "$",
        "(",
        "1.",
        "a1",
        "9 ",
        "[a](/b/)",
        "é",
        "٣",
    ],
)
def test_hostile_text_never_fails_and_time_stays_linear(voice: BuiltinVoice, unit: str) -> None:
    text = unit * (2000 // len(unit))
    stream = voice.open(VoiceRequest(text=text, max_frames=125))
    begun = time.process_time()
    try:
        read_all(stream)
    except InvalidRequest as error:
        assert "English" in str(error)
    assert time.process_time() - begun < 10


def test_only_voices_on_this_machine_are_offered(voice: BuiltinVoice) -> None:
    assert voice.info.default_voice in voice.info.voices
    with pytest.raises(UnknownVoice, match="heart"):
        voice.open(VoiceRequest(text="a", voice="nobody"))


def test_instructions_are_not_silently_dropped(voice: BuiltinVoice) -> None:
    stream = voice.open(VoiceRequest(text="Hi.", instruct="angrily"))
    read_all(stream)
    assert any("instructions" in warning for warning in stream.stats.warnings)


WATCH_THE_IMPORT = """
import importlib.abc, os, sys
class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "onnxruntime":
            print("telemetry off:", os.environ.get("ORT_DISABLE_TELEMETRY"))
        return None
sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize(
    ("work", "seen"),
    [
        ("from kazeia_server.voices.builtin import BuiltinVoice; BuiltinVoice()", "1"),
        ("os.environ['ORT_DISABLE_TELEMETRY'] = '1'; import onnxruntime", "1"),
        ("import importlib.util; importlib.util.find_spec('onnxruntime')", "None"),
    ],
    ids=["voice", "told", "not told"],
)
def test_nobody_is_told_that_it_speaks(work: str, seen: str) -> None:
    """The variable is there before ONNX Runtime is, which reads it once."""
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", f"{WATCH_THE_IMPORT}\n{work}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"telemetry off: {seen}"
