from __future__ import annotations

from typing import Any

import pytest

from kazeia_server.audio.formats import (
    ELEVENLABS_FORMATS,
    FORMAT_NAMES,
    OutputFormat,
    parse_output_format,
)
from kazeia_server.errors import InvalidRequest


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_every_format_has_a_content_type(name: Any) -> None:
    assert OutputFormat(name).content_type.startswith("audio/")


@pytest.mark.parametrize(
    ("output", "rate"),
    [
        (OutputFormat("pcm"), 24_000),
        (OutputFormat("mp3"), 24_000),
        (OutputFormat("opus"), 48_000),
        (OutputFormat("aac"), 48_000),
        (OutputFormat("ulaw"), 8_000),
        (OutputFormat("flac", 16_000), 16_000),
    ],
)
def test_rate_of_a_24_khz_voice(output: OutputFormat, rate: int) -> None:
    assert output.rate_for(24_000) == rate


def test_a_rate_the_codec_lacks_becomes_the_next() -> None:
    assert OutputFormat("mp3").rate_for(23_000) == 24_000
    assert OutputFormat("mp3").rate_for(96_000) == 48_000


@pytest.mark.parametrize(
    ("arguments", "param", "says"),
    [
        (("ogg",), "response_format", "mp3"),
        (("pcm", 7_999), "sample_rate", "8000 to 48000"),
        (("wav", 48_001), "sample_rate", "8000 to 48000"),
        (("mp3", 23_000), "sample_rate", "22050, 24000"),
        (("opus", 44_100), "sample_rate", "24000, 48000"),
        (("mp3", None, 7_000), "bitrate", "8000 to 320000"),
        (("opus", None, 10**9), "bitrate", "6000 to 256000"),
        (("flac", None, 64_000), "bitrate", "no choice"),
    ],
)
def test_what_no_encoder_can_make_is_refused(arguments: Any, param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        OutputFormat(*arguments)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("mp3_44100_128", OutputFormat("mp3", 44_100, 128_000)),
        ("mp3_22050_32", OutputFormat("mp3", 22_050, 32_000)),
        ("pcm_24000", OutputFormat("pcm", 24_000)),
        ("wav_16000", OutputFormat("wav", 16_000)),
        ("ulaw_8000", OutputFormat("ulaw", 8_000)),
        ("alaw_8000", OutputFormat("alaw", 8_000)),
        ("opus_48000_64", OutputFormat("opus", 48_000, 64_000)),
    ],
)
def test_elevenlabs_names(name: str, output: OutputFormat) -> None:
    assert parse_output_format(name) == output


def test_all_elevenlabs_names_are_possible() -> None:
    assert len({parse_output_format(name) for name in ELEVENLABS_FORMATS}) == 32


@pytest.mark.parametrize(
    "name", ["", "mp3", "mp3_44100", "mp3_44100_127", "PCM_24000", "pcm_0", "_", "x" * 10_000]
)
def test_other_names_are_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(InvalidRequest, match="mp3_44100_128") as caught:
        parse_output_format(name)
    assert caught.value.param == "output_format"
    assert len(str(caught.value)) < 800
