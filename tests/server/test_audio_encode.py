from __future__ import annotations

import ctypes
import gc
import io
import threading
import wave
from typing import Any

import av
import numpy as np
import pytest

from kazeia_server.audio.encode import Encoder, open_encoder
from kazeia_server.audio.formats import (
    ELEVENLABS_FORMATS,
    FORMAT_NAMES,
    OutputFormat,
    parse_output_format,
)
from kazeia_server.audio.pcm import Samples, pcm16, wav_header
from kazeia_server.errors import EngineFailure, InvalidRequest

RATE = 24_000
CODECS = ["mp3", "opus", "aac", "flac"]
EXACT = ["pcm", "wav", "opus", "flac", "ulaw", "alaw"]
# Frames of mp3 and aac cannot be cut: at their default rates the last one ends this late.
FRAME_S = {"mp3": 576 / 24_000, "aac": 1024 / 48_000}
BURST_S = 0.03
BURST_HERTZ = 1500


def speech_like(n_samples: int) -> Samples:
    """A soft tone after 20 ms of silence, and a loud burst of another tone in the last 30 ms."""
    time = np.arange(n_samples) / RATE
    samples = 0.1 * np.sin(2 * np.pi * 200 * time)
    samples[: round(0.02 * RATE)] = 0.0
    n_burst = min(n_samples, round(BURST_S * RATE))
    samples[n_samples - n_burst :] = 0.7 * np.sin(2 * np.pi * BURST_HERTZ * time[:n_burst])
    return samples.astype(np.float32)


def encoded(encoder: Encoder, samples: Samples, size: int | None = None) -> bytes:
    step = size or max(1, len(samples))
    parts = [encoder.feed(samples[i : i + step]) for i in range(0, len(samples), step)]
    return b"".join([*parts, encoder.finish()])


def decoded(data: bytes, name: str, rate: int) -> tuple[np.ndarray[Any, Any], int]:
    """Samples [n] and rate of a body, by FFmpeg's demuxers and decoders, and `wave` of Python."""
    if name == "wav":
        with wave.open(io.BytesIO(data)) as reader:
            values = np.frombuffer(reader.readframes(reader.getnframes()), "<i2")
            return values / 32767, reader.getframerate()
    bare = {"pcm": "s16le", "ulaw": "mulaw", "alaw": "alaw"}
    options = {"sample_rate": str(rate)} if name in bare else {}
    with av.open(io.BytesIO(data), "r", format=bare.get(name), options=options) as container:
        stream = container.streams.audio[0]
        assert stream.channels == 1
        parts = []
        for frame in container.decode(stream):
            values = frame.to_ndarray()[0]
            parts.append(values / 32767 if values.dtype == np.int16 else values)
        return np.concatenate([np.zeros(0), *parts]), stream.rate


def excess_s(samples: np.ndarray[Any, Any], rate: int, n_source: int) -> float:
    return len(samples) / rate - n_source / RATE


def check_burst(samples: np.ndarray[Any, Any], rate: int, n_source: int) -> None:
    """The burst is there, where it belongs, up to its last milliseconds."""
    end = round(n_source / RATE * rate)
    for begin_s, end_s in ((BURST_S, 0.015), (0.015, 0.004)):
        part = samples[end - round(begin_s * rate) : end - round(end_s * rate)]
        assert len(part), "the sound has ended before"
        level = np.sqrt(np.mean(part**2))
        assert level == pytest.approx(0.7 / np.sqrt(2), rel=0.25)


# ---------------------------------------------------------------------------- to the last sample


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("n_samples", [12_345, 24_000, 72_369, 120_001])
def test_duration_and_tail(name: Any, n_samples: int) -> None:
    encoder = open_encoder(OutputFormat(name), RATE)
    data = encoded(encoder, speech_like(n_samples), 1920)
    samples, rate = decoded(data, name, encoder.sample_rate)
    assert rate == encoder.sample_rate
    assert abs(excess_s(samples, rate, n_samples)) <= 0.020
    check_burst(samples, rate, n_samples)


@pytest.mark.parametrize("name", CODECS)
def test_the_check_fails_when_an_encoder_is_not_flushed(name: Any) -> None:
    encoder = open_encoder(OutputFormat(name), RATE)
    data = encoder.feed(speech_like(24_300))
    samples, rate = decoded(data, name, encoder.sample_rate)
    with pytest.raises(AssertionError):
        check_burst(samples, rate, 24_300)


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_duration_whatever_the_length(name: Any) -> None:
    for n_samples in range(4800, 4800 + 1200, 83):
        encoder = open_encoder(OutputFormat(name), RATE)
        samples, rate = decoded(encoded(encoder, speech_like(n_samples)), name, encoder.sample_rate)
        late = excess_s(samples, rate, n_samples)
        assert -1 / rate <= late <= FRAME_S.get(name, 1 / rate)
        check_burst(samples, rate, n_samples)


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_sound_is_in_its_place(name: Any) -> None:
    """No delay at the start: a click comes when it should, and nothing sounds before it."""
    source = np.zeros(RATE, np.float32)
    source[12_000:12_024] = 0.8
    encoder = open_encoder(OutputFormat(name), RATE)
    samples, rate = decoded(encoded(encoder, source), name, encoder.sample_rate)
    assert np.argmax(np.abs(samples)) / rate == pytest.approx(0.5, abs=0.002)
    assert np.abs(samples[: round(0.45 * rate)]).max() < 0.02


@pytest.mark.parametrize("name", CODECS)
def test_sound_is_itself(name: Any) -> None:
    """After the first frame, what is decoded is the tone that was encoded."""
    n_samples = 2 * RATE
    tone = (0.3 * np.sin(2 * np.pi * 500 * np.arange(n_samples) / RATE)).astype(np.float32)
    encoder = open_encoder(OutputFormat(name), RATE)
    samples, rate = decoded(encoded(encoder, tone), name, encoder.sample_rate)
    ideal = 0.3 * np.sin(2 * np.pi * 500 * np.arange(len(samples)) / rate)
    inner = slice(round(0.035 * rate), round(1.95 * rate))
    gain = np.dot(samples[inner], ideal[inner]) / np.dot(ideal[inner], ideal[inner])
    assert gain == pytest.approx(1.0, abs=0.06)  # LAME makes all a little softer: 0.95
    error = samples[inner] / gain - ideal[inner]
    # AAC loses the most, and what it loses depends on the processor: 0.016 with AVX2, 0.023 on ARM.
    assert np.sqrt(np.mean(error**2)) < 0.03 * np.sqrt(np.mean(ideal[inner] ** 2))


# ------------------------------------------------------------------------- one stream, one header


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("speed", [1.0, 1.3])
def test_bytes_do_not_depend_on_feed_sizes(name: Any, speed: float) -> None:
    samples = speech_like(4001)
    whole = encoded(open_encoder(OutputFormat(name), RATE, speed), samples)
    for size in (1, 37, 480, 1920):
        assert encoded(open_encoder(OutputFormat(name), RATE, speed), samples, size) == whole


def test_pcm_is_bit_true() -> None:
    samples = np.random.default_rng(1).normal(0, 0.5, 10_001).astype(np.float32)
    for output in (OutputFormat("pcm"), OutputFormat("pcm", RATE)):
        assert encoded(open_encoder(output, RATE), samples, 77) == pcm16(samples)


@pytest.mark.parametrize("output", [OutputFormat("pcm"), OutputFormat("pcm", 22_050)])
@pytest.mark.parametrize("speed", [1.0, 0.7])
def test_pcm_comes_in_whole_samples(output: OutputFormat, speed: float) -> None:
    encoder = open_encoder(output, RATE, speed)
    noise = np.random.default_rng(1).normal(0, 0.1, 5001).astype(np.float32)
    parts = [encoder.feed(noise[i : i + 333]) for i in range(0, 5001, 333)]
    assert all(len(part) % 2 == 0 for part in [*parts, encoder.finish()])


def test_wav_is_one_streaming_header_and_pcm() -> None:
    samples = speech_like(5000)
    encoder = open_encoder(OutputFormat("wav"), RATE)
    assert encoder.feed(samples[:1])[:44] == wav_header(None, RATE)
    data = encoded(open_encoder(OutputFormat("wav"), RATE), samples, 500)
    assert data == wav_header(None, RATE) + pcm16(samples)


def test_flac_is_lossless() -> None:
    samples = speech_like(30_000)
    data = encoded(open_encoder(OutputFormat("flac"), RATE), samples, 1920)
    assert data.count(b"fLaC") == 1
    with av.open(io.BytesIO(data), "r") as container:
        back = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert back.astype("<i2").tobytes() == pcm16(samples)


def test_ogg_is_one_logical_stream_with_an_end() -> None:
    data = encoded(open_encoder(OutputFormat("opus"), RATE), speech_like(30_000), 1920)
    pages, at = [], 0
    while at < len(data):
        assert data[at : at + 4] == b"OggS"
        n_segments = data[at + 26]
        body = sum(data[at + 27 : at + 27 + n_segments])
        granule = int.from_bytes(data[at + 6 : at + 14], "little")
        pages.append((data[at + 5], data[at + 14 : at + 18], granule))
        at += 27 + n_segments + body
    assert at == len(data)
    assert [flags & 2 for flags, _, _ in pages] == [2] + [0] * (len(pages) - 1)  # begin
    assert [flags & 4 for flags, _, _ in pages] == [0] * (len(pages) - 1) + [4]  # end
    assert len({serial for _, serial, _ in pages}) == 1
    pre_skip = int.from_bytes(data[data.index(b"OpusHead") + 10 :][:2], "little")
    assert pages[-1][2] - pre_skip == 60_000
    steps = np.diff([granule for _, _, granule in pages[2:]])
    assert steps.max() <= 4800  # 100 ms


def mp3_frames(data: bytes) -> list[int]:
    """Sizes of the frames that a body consists of, with nothing between them."""
    kbit_1 = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]
    kbit_2 = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160]
    sizes, at = [], 0
    while at < len(data):
        assert data[at] == 0xFF
        assert data[at + 1] & 0xE6 == 0xE2  # layer III
        version = data[at + 1] >> 3 & 3
        rate = [44_100, 48_000, 32_000][data[at + 2] >> 2 & 3] // {3: 1, 2: 2, 0: 4}[version]
        kbit = (kbit_1 if version == 3 else kbit_2)[data[at + 2] >> 4]
        sizes.append((144 if version == 3 else 72) * kbit * 1000 // rate + (data[at + 2] >> 1 & 1))
        at += sizes[-1]
    assert at == len(data)
    return sizes


@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000, 44_100, 48_000])
def test_mp3_is_nothing_but_frames(rate: int) -> None:
    samples = speech_like(30_000)
    data = encoded(open_encoder(OutputFormat("mp3", rate), RATE), samples, 1920)
    per_frame = 1152 if rate >= 32_000 else 576
    assert len(mp3_frames(data)) == -(-30_000 * rate // RATE // per_frame)
    assert b"Info" not in data
    assert b"Xing" not in data


def test_aac_is_nothing_but_adts_frames() -> None:
    data = encoded(open_encoder(OutputFormat("aac"), RATE), speech_like(30_000), 1920)
    n_frames, at = 0, 0
    while at < len(data):
        assert data[at : at + 2] in (b"\xff\xf1", b"\xff\xf9")
        at += int.from_bytes(data[at + 3 : at + 6], "big") >> 5 & 0x1FFF
        n_frames += 1
    assert at == len(data)
    assert n_frames == -(-60_000 // 1024)


@pytest.mark.parametrize("name", ["ulaw", "alaw"])
def test_g711_is_a_byte_a_sample(name: Any) -> None:
    data = encoded(open_encoder(OutputFormat(name), RATE), speech_like(30_000), 1920)
    assert len(data) == 10_000


@pytest.mark.parametrize("name", ELEVENLABS_FORMATS)
def test_all_elevenlabs_formats(name: str) -> None:
    output = parse_output_format(name)
    encoder = open_encoder(output, RATE)
    data = encoded(encoder, speech_like(48_000), 1920)
    samples, rate = decoded(data, output.name, encoder.sample_rate)
    assert rate == encoder.sample_rate == output.sample_rate
    assert abs(excess_s(samples, rate, 48_000)) <= 0.027
    check_burst(samples, rate, 48_000)
    if output.name == "mp3":
        assert output.bitrate is not None
        assert len(data) * 8 / (len(samples) / rate) == pytest.approx(
            224_000 if output.bitrate == 240_000 else output.bitrate,  # MP3 has no 240
            rel=0.02,
        )


# ---------------------------------------------------------------------------------- while it runs


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_sound_leaves_while_it_is_made(name: Any) -> None:
    """What has left can be played, and lags at most 130 ms behind what went in."""
    encoder = open_encoder(OutputFormat(name), RATE)
    samples = speech_like(10 * RATE)
    data = b""
    for begin in range(0, len(samples), 1920):
        data += encoder.feed(samples[begin : begin + 1920])
        if begin % 48_000 == 0 and begin:
            played, rate = decoded(data, name, encoder.sample_rate)
            assert excess_s(played, rate, begin + 1920) >= -0.130


@pytest.mark.parametrize("name", ["wav", "opus", "flac"])
def test_the_header_leaves_first(name: Any) -> None:
    head = open_encoder(OutputFormat(name), RATE).feed(np.zeros(0, np.float32))
    assert head[:4] in (b"RIFF", b"OggS", b"fLaC")


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_body_without_samples_is_valid(name: Any) -> None:
    encoder = open_encoder(OutputFormat(name), RATE, 2.0)
    data = encoder.feed(np.zeros(0, np.float32)) + encoder.finish()
    samples, _ = decoded(data, name, encoder.sample_rate)
    assert len(samples) / encoder.sample_rate <= 0.1
    assert not samples.any()
    assert encoded(open_encoder(OutputFormat(name), RATE), np.zeros(0, np.float32)) == data


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("n_samples", [1, 2, 479, 577])
def test_a_very_short_body_is_valid(name: Any, n_samples: int) -> None:
    encoder = open_encoder(OutputFormat(name), RATE)
    samples, rate = decoded(encoded(encoder, speech_like(n_samples)), name, encoder.sample_rate)
    assert -1 / rate <= excess_s(samples, rate, n_samples) <= 0.1


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_what_is_not_finite_is_silence(name: Any) -> None:
    clean = speech_like(9600)
    clean[3000:3010] = 0.0
    broken = clean.copy()
    broken[3000:3010] = [np.nan, np.inf, -np.inf, np.nan, np.nan, np.inf, np.inf, 0, np.nan, np.nan]
    for speed in (1.0, 0.5):
        assert encoded(open_encoder(OutputFormat(name), RATE, speed), broken) == encoded(
            open_encoder(OutputFormat(name), RATE, speed), clean
        )


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_too_loud_is_clipped(name: Any) -> None:
    encoder = open_encoder(OutputFormat(name), RATE)
    loud = 1e30 * np.sign(speech_like(9600))
    samples, _ = decoded(encoded(encoder, loud.astype(np.float32)), name, encoder.sample_rate)
    assert 0.8 < np.abs(samples).max() < 2.0


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("speed", [0.25, 0.8, 4.0])
def test_speed(name: Any, speed: float) -> None:
    encoder = open_encoder(OutputFormat(name), RATE, speed)
    tone = (0.3 * np.sin(2 * np.pi * 500 * np.arange(3 * RATE) / RATE)).astype(np.float32)
    samples, rate = decoded(encoded(encoder, tone, 1920), name, encoder.sample_rate)
    assert len(samples) / rate == pytest.approx(3 / speed + 0.02, abs=0.025)
    middle = samples[len(samples) // 4 : -len(samples) // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * rate / len(middle) == pytest.approx(500, rel=0.01)


def test_other_speeds_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"0\.25 to 4"):
        open_encoder(OutputFormat("mp3"), RATE, 5.0)


def test_an_encoder_that_ffmpeg_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from kazeia_server.audio import codec

    monkeypatch.setitem(codec._RECIPES, "mp3", codec._Recipe("no_such_codec", "mp3", "fltp"))
    with pytest.raises(EngineFailure, match="cannot encode mp3: no_such_codec"):
        open_encoder(OutputFormat("mp3"), RATE)


def test_streams_side_by_side_do_not_mix() -> None:
    names: list[Any] = [*CODECS, *CODECS]
    samples = speech_like(2 * RATE)
    results: dict[int, bytes] = {}

    def encode(index: int) -> None:
        results[index] = encoded(open_encoder(OutputFormat(names[index]), RATE), samples, 777)

    threads = [threading.Thread(target=encode, args=(index,)) for index in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, name in enumerate(names):
        assert results[index] == encoded(open_encoder(OutputFormat(name), RATE), samples)


class Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`: ten sizes, of which the fifth counts the bytes in mappings of
    their own and the eighth those in the heap."""

    _fields_ = (("sizes", ctypes.c_size_t * 10),)


def allocated_bytes() -> int:
    """Bytes that were allocated and not freed.

    The resident set is no measure: what is freed stays in it, for as long as malloc likes.
    """
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo
    sizes = libc.mallinfo2().sizes
    return int(sizes[4] + sizes[7])


def test_a_long_stream_holds_no_more_memory_than_a_short_one() -> None:
    for name in ("mp3", "opus", "aac", "flac"):
        encoder = open_encoder(OutputFormat(name), RATE, 1.25)
        noise = np.random.default_rng(1).normal(0, 0.1, RATE).astype(np.float32)
        for _ in range(5):
            encoder.feed(noise)
        before, n_bytes = allocated_bytes(), 0
        for _ in range(60):
            n_bytes += len(encoder.feed(noise))
        assert n_bytes > 60 * 4000
        assert allocated_bytes() - before < 1 << 20  # 60 s of float samples are 5.5 MB


def test_dropped_encoders_leave_nothing_behind() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, 4800).astype(np.float32)
    gc.collect()
    gc.disable()  # what is freed is freed by leaving
    try:
        for n_dropped in range(200):
            open_encoder(OutputFormat("flac"), RATE, 1.5).feed(noise)
            if n_dropped == 50:
                before = allocated_bytes()
        assert allocated_bytes() - before < 1 << 20  # one is 7 MB
    finally:
        gc.enable()
