from __future__ import annotations

import io
import wave

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kazeia_client import AudioFormat
from kazeia_client.wav import wav_header as client_wav_header
from kazeia_server.audio.pcm import WAV_HEADER_BYTES, Blocks, pcm16, wav_header

LARGEST = 2**32 - 1 - 36 - 1  # an even number of bytes


def decoded(samples: list[float]) -> list[int]:
    return np.frombuffer(pcm16(np.array(samples, dtype=np.float32)), dtype="<i2").tolist()


def test_rounds_to_nearest_and_is_symmetric() -> None:
    step = 1 / 32767
    assert decoded([0.0, -0.0, 0.6 * step, -0.6 * step, 0.4 * step]) == [0, 0, 1, -1, 0]
    assert decoded([1.0, -1.0, 0.5, -0.5]) == [32767, -32767, 16384, -16384]


def test_clips_instead_of_wrapping() -> None:
    assert decoded([1.5, -1.5, 1e30, -1e30, 3e38, -3e38]) == [32767, -32767] * 3


def test_what_is_not_finite_is_silence() -> None:
    assert decoded([np.nan, 1.0, np.inf, -np.inf]) == [0, 32767, 0, 0]


def test_error_is_at_most_half_a_step() -> None:
    samples = np.random.default_rng(1).uniform(-1, 1, 10_000).astype(np.float32)
    back = np.frombuffer(pcm16(samples), dtype="<i2") / 32767
    assert np.abs(back - samples).max() <= 0.5 / 32767 + 1e-7


def test_does_not_write_to_its_input() -> None:
    samples = np.array([2.0, np.nan], dtype=np.float32)
    pcm16(samples)
    assert samples[0] == 2.0
    assert np.isnan(samples[1])


@pytest.mark.parametrize("n_samples", [0, 1, 24_000])
def test_header_is_canonical_and_true(n_samples: int) -> None:
    data = bytes(2 * n_samples)
    header = wav_header(len(data), 24_000)
    assert len(header) == WAV_HEADER_BYTES == 44
    assert int.from_bytes(header[4:8], "little") == 36 + len(data)
    assert int.from_bytes(header[40:44], "little") == len(data)
    with wave.open(io.BytesIO(header + data)) as reader:
        assert reader.getnframes() == n_samples
        assert reader.getframerate() == 24_000
        assert (reader.getnchannels(), reader.getsampwidth()) == (1, 2)


def test_header_of_unknown_size_is_the_one_openai_streams() -> None:
    header = wav_header(None, 24_000)
    known = wav_header(0, 24_000)
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
    assert (header[:4], header[8:40]) == (known[:4], known[8:40])


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_blocks_are_cut_alike_however_the_samples_come(size: int) -> None:
    samples = np.arange(50, dtype=np.float32)
    blocks = Blocks(7)
    cut = [block for start in range(0, 50, size) for block in blocks.feed(samples[start:][:size])]
    assert [len(block) for block in cut] == [7] * 7
    assert np.array_equal(np.concatenate([*cut, blocks.finish()]), samples)
    assert len(blocks.finish()) == 0


def test_blocks_keep_no_hold_of_what_they_were_given() -> None:
    blocks = Blocks(10)
    samples = np.ones(5, np.float32)
    blocks.feed(samples)
    samples[:] = 9.0
    assert blocks.finish().tolist() == [1.0] * 5


@pytest.mark.parametrize("size", [-2, 1, 3, 2**32 - 2, 2**33])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="even size"):
        wav_header(size, 24_000)


@example(size=LARGEST, rate=24_000)
@example(size=LARGEST - 2, rate=24_000)
@given(
    size=st.none() | st.integers(0, LARGEST // 2).map(lambda n_samples: 2 * n_samples),
    rate=st.integers(1, 768_000),
)
def test_the_client_writes_the_same_header(size: int | None, rate: int) -> None:
    """Each has its own: neither imports the other."""
    assert wav_header(size, rate) == client_wav_header(size, AudioFormat("pcm", rate))
