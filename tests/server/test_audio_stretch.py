from __future__ import annotations

import numpy as np
import pytest

from kazeia_server.audio.pcm import Samples
from kazeia_server.audio.stretch import RateConverter
from kazeia_server.errors import InvalidRequest

RATE = 24_000
SPEEDS = [0.25, 0.5, 0.8, 1.25, 2.0, 4.0]


def sine(hertz: float, seconds: float, rate: int = RATE) -> Samples:
    time = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def converted(converter: RateConverter, samples: Samples, size: int | None = None) -> Samples:
    step = size or max(1, len(samples))
    parts = [converter.feed(samples[i : i + step]) for i in range(0, len(samples), step)]
    return np.concatenate([*parts, converter.finish()])


def peak_hertz(samples: Samples, rate: int = RATE) -> float:
    windowed = samples * np.hanning(len(samples))
    spectrum = np.abs(np.fft.rfft(windowed, 8 * len(windowed)))
    return float(np.argmax(spectrum)) * rate / (8 * len(windowed))


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("hertz", [150.0, 440.0, 3000.0])
def test_pitch_is_kept(speed: float, hertz: float) -> None:
    out = converted(RateConverter(RATE, RATE, speed), sine(hertz, 3.0))
    middle = out[len(out) // 4 : -len(out) // 4]
    assert peak_hertz(middle) == pytest.approx(hertz, rel=0.01)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.15)


def test_playing_faster_is_not_what_is_meant() -> None:
    assert peak_hertz(sine(440, 3.0)[::2]) == pytest.approx(880, rel=0.01)


@pytest.mark.parametrize("speed", [*SPEEDS, 0.3, 1.01, 3.7])
@pytest.mark.parametrize("n_samples", [1, 100, 1000, 24_000, 72_001])
def test_duration(speed: float, n_samples: int) -> None:
    out = converted(RateConverter(RATE, RATE, speed), sine(300, 4.0)[:n_samples])
    assert len(out) == round(n_samples / speed) + RATE // 50
    assert abs(len(out) - n_samples / speed) <= 0.01 * n_samples / speed + 0.04 * RATE


@pytest.mark.parametrize("speed", [0.25, 0.8, 1.25, 4.0])
def test_the_end_is_not_lost(speed: float) -> None:
    speech = sine(200, 2.0) * 0.2
    speech[-720:] = 0
    burst = speech.copy()
    burst[-720:] = sine(1500, 0.03)
    for samples, is_there in ((burst, True), (speech, False)):
        out = converted(RateConverter(RATE, RATE, speed), samples)
        tail = out[-round((0.03 / speed + 0.06) * RATE) :]
        spectrum = np.abs(np.fft.rfft(tail * np.hanning(len(tail)), 32_768))
        at_burst = spectrum[round(1500 * 32_768 / RATE)]
        assert (at_burst > 0.03 * 720 / speed) == is_there


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("size", [1, 7, 481, 1920, 10**6])
def test_any_feed_sizes_give_the_same(speed: float, size: int) -> None:
    noise = np.random.default_rng(3).normal(0, 0.2, 5001).astype(np.float32)
    whole = converted(RateConverter(RATE, RATE, speed), noise)
    assert np.array_equal(converted(RateConverter(RATE, RATE, speed), noise, size), whole)


def test_speed_1_is_the_identity() -> None:
    noise = np.random.default_rng(3).normal(0, 1, 5001).astype(np.float32)
    stretch = RateConverter(RATE, RATE, 1.0)
    assert np.array_equal(stretch.feed(noise), noise)
    assert len(stretch.finish()) == 0


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_nothing_stays_nothing(speed: float) -> None:
    assert len(converted(RateConverter(RATE, RATE, speed), np.zeros(0, np.float32))) == 0


@pytest.mark.parametrize("speed", [0.0, 0.249, 4.001, -1.0, float("nan"), float("inf")])
def test_other_speeds_are_refused(speed: float) -> None:
    with pytest.raises(InvalidRequest, match=r"0\.25 to 4") as caught:
        RateConverter(RATE, RATE, speed)
    assert caught.value.param == "speed"


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("n_samples", [1, 100, 24_001, 72_369])
def test_resampled_length(rate: int, n_samples: int) -> None:
    out = converted(RateConverter(RATE, rate), sine(300, 4.0)[:n_samples])
    assert abs(len(out) - n_samples * rate / RATE) <= 1


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_resampled_sound_is_in_place(rate: int) -> None:
    out = converted(RateConverter(RATE, rate), sine(440, 2.0))
    inner = slice(200, -200)
    assert np.abs(out - sine(440, 2.0, rate))[inner].max() < 1e-3


@pytest.mark.parametrize("rate", [8_000, 44_100])
@pytest.mark.parametrize("size", [1, 7, 481, 1920])
def test_resampling_does_not_depend_on_feed_sizes(rate: int, size: int) -> None:
    noise = np.random.default_rng(3).normal(0, 0.2, 5001).astype(np.float32)
    whole = converted(RateConverter(RATE, rate), noise)
    assert np.array_equal(converted(RateConverter(RATE, rate), noise, size), whole)


def test_what_a_lower_rate_cannot_hold_is_gone() -> None:
    out = converted(RateConverter(RATE, 8_000), sine(6_000, 1.0))
    assert np.abs(out[200:-200]).max() < 0.01


def test_speed_and_rate_together() -> None:
    out = converted(RateConverter(RATE, 44_100, 2.0), sine(440, 3.0))
    assert len(out) == round(1.52 * 44_100)
    assert peak_hertz(out[11_025:-11_025], 44_100) == pytest.approx(440, rel=0.01)
