"""Speaking, stopping and saving, as a visitor of the page does it."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import serving, until
from sound import heard, n_blocks, sounding, spoken, wait_for_silence, whole_before_heard

from kazeia_server.errors import EngineFailure

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from conftest import OpenPage


def wait_for_status(page: Page, text: str) -> None:
    page.wait_for_function(
        "text => document.getElementById('status').textContent.includes(text)", arg=text
    )


def saved(page: Page) -> bytes:
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename.endswith(".wav")
    return Path(download.value.path()).read_bytes()


def test_samples_reach_the_audio_thread_in_order(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=30)
    with serving(voice) as live:
        page = open_page(live.url, tap=live, rate=RATE)
        assert n_blocks(page) == 0
        with whole_before_heard(page, voice):
            page.click("#speak")
        wait_for_status(page, "Done")
        sound, expected = heard(page), sounding(voice, 30)
        np.testing.assert_array_equal(sound[: len(expected)], expected)
        tail = sound[len(expected) :]
        assert np.all(np.abs(tail[200:]) < 1e-4), "sound after the end"
        assert page.inner_text("#underruns") == "0"
        assert page.inner_text("#made") == page.inner_text("#played") == "0:02.4"


def test_the_rate_of_the_sound_card_is_matched(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=20)
    with serving(voice) as live:
        page = open_page(live.url, tap=live, rate=44_100)
        with whole_before_heard(page, voice):
            page.click("#speak")
        wait_for_status(page, "Done")
        sound = heard(page)
    frame = FRAME * 44_100 // RATE
    tones = []
    for index in range(20):
        window = sound[index * frame : (index + 1) * frame] * np.hanning(frame)
        tones.append(np.argmax(np.abs(np.fft.rfft(window, 44_100))))  # bins of 1 Hz
    assert np.abs(np.array(tones) - (200 + 10 * np.arange(20))).max() <= 3


def test_the_first_sound_does_not_wait_for_the_last(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.02)
    with serving(voice) as live:
        page = open_page(live.url, tap=live, rate=RATE)
        page.click("#speak")
        page.wait_for_function("() => heard.some((block) => block.some((value) => value !== 0))")
        assert live.service.running == 1
        page.wait_for_function("() => document.getElementById('first-sound').textContent !== '–'")
        page.wait_for_function(
            "() => parseFloat(document.getElementById('buffered').textContent) > 1"
        )
        page.wait_for_function("() => Number(document.getElementById('rtf').textContent) < 1")
        page.click("#stop")


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_generation_and_sound(open_page: OpenPage, how: str) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.01)
    with serving(voice) as live:
        page = open_page(live.url, tap=live, rate=RATE)
        page.click("#speak")
        page.wait_for_function(
            "() => parseFloat(document.getElementById('buffered').textContent) > 1"
        )
        if how == "button":
            page.click("#stop")
        else:
            page.keyboard.press("Escape")
        until(lambda: live.service.running == 0)
        assert voice.streams[-1].cancelled.is_set()
        wait_for_silence(page)
        page.wait_for_timeout(200)  # the next drawing
        made = page.inner_text("#made")
        before = n_blocks(page)
        page.wait_for_function("n => heard.length > n + 50", arg=before)
        after = "n => heard.slice(n).every((block) => block.every((value) => value === 0))"
        assert page.evaluate(after, before), "sound after stop"
        assert page.inner_text("#made") == made
        assert page.inner_text("#status") == "Stopped"
        assert page.is_disabled("#stop")

        voice.n_chunks = 5  # the same socket speaks again, and only of the new utterance
        page.click("#speak")
        wait_for_status(page, "Done")
        with wave.open(io.BytesIO(saved(page))) as reader:
            data = reader.readframes(reader.getnframes())
        assert data == spoken(voice, 5).tobytes()


def test_speak_again_replaces_what_is_spoken(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.01)
    with serving(voice, max_concurrent=1, max_queue=1) as live:
        page = open_page(live.url)
        for text in ("one", "two", "three", "four"):
            page.fill("#text", text)
            page.keyboard.press("Control+Enter")
        until(lambda: bool(voice.texts) and voice.texts[-1] == "four")
        until(lambda: voice.open_now == 1)
        wait_for_status(page, "Speaking")
        page.keyboard.press("Escape")
        until(lambda: live.service.running == 0)


def test_download_is_what_was_spoken(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=7)
    with serving(voice) as live:
        page = open_page(live.url)
        assert page.is_disabled("#download")
        page.click("#speak")
        wait_for_status(page, "Done")
        data = saved(page)
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    with wave.open(io.BytesIO(data)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (RATE, 1, 2)
        assert reader.getnframes() == 7 * FRAME
        assert reader.readframes(7 * FRAME) == spoken(voice, 7).tobytes()


def test_options_reach_the_voice(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=2)
    with serving(voice) as live:
        page = open_page(live.url)
        assert page.input_value("#voice") == "anna"
        page.fill("#text", "Straße, 東京, ça va?")
        page.select_option("#voice", "Bert")
        page.select_option("#language", "french")
        page.fill("#speed", "1")
        page.click("summary")
        page.fill("#seed", "42")
        page.fill("#instruct", "Whisper.")
        page.click("#speak")
        wait_for_status(page, "Done")
    request = voice.requests[-1]
    assert voice.texts[-1] == "Straße, 東京, ça va?"
    assert (request.voice, request.language, request.seed) == ("Bert", "french", 42)
    assert request.instruct == "Whisper."
    assert request.speed == 2.0


def test_a_slow_voice_is_shown_as_slow(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=24, delay_s=0.2)  # 80 ms of speech each 200 ms
    with serving(voice) as live:
        page = open_page(live.url, tap=live, rate=RATE)
        page.click("#speak")
        page.wait_for_function(
            "() => Number(document.getElementById('underruns').textContent) >= 2"
        )
        page.wait_for_selector("#slow:visible")
        assert "more slowly" in page.inner_text("#slow")
        assert float(page.inner_text("#rtf")) > 1
        wait_for_status(page, "Done")
        # Gaps are silence between the same samples: what is heard without them is the speech.
        sound = heard(page)
        expected = spoken(voice, 24) / np.float32(32768)
        assert np.sum(np.abs(sound) > 1e-3) > 0.9 * np.sum(np.abs(expected) > 1e-3)
        underruns = int(page.inner_text("#underruns"))
        assert 2 <= underruns <= 8, "the buffer did not grow"


def test_errors_can_be_read(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=3, error=EngineFailure("a tensor is NaN"))
    with serving(voice, max_text_chars=300) as live:
        page = open_page(live.url)
        for text, message in (
            ("   ", "write a text first"),
            ("a" * 301, "at most 300"),
        ):
            page.fill("#text", text)
            page.click("#speak")
            page.wait_for_selector("#error:visible")
            assert message in page.inner_text("#error")
        voice.fail_at = 1
        page.fill("#text", "Hello.")
        page.click("#speak")
        page.wait_for_function("() => document.getElementById('error').textContent.includes('NaN')")
        assert page.is_disabled("#stop")
        voice.fail_at = None
        page.click("#speak")
        wait_for_status(page, "Done")
        assert page.is_hidden("#error")


def test_a_server_that_goes_away(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.07)
    with serving(voice, shutdown_timeout_s=0) as live:
        page = open_page(live.url, allow=("WebSocket connection", "CONNECTION_REFUSED"))
        page.click("#speak")
        wait_for_status(page, "Speaking")
        live.server.should_exit = True
        page.wait_for_selector("#error:visible")
        assert "shutting down" in page.inner_text("#error")
        until(lambda: not live.server.started or not live.server.servers[0].is_serving(), 10)
        page.click("#speak")  # and nobody is there to be reached
        page.wait_for_function(
            "() => document.getElementById('error').textContent.includes('cannot be reached')"
        )
        assert page.is_disabled("#stop")


def test_without_sound_the_speech_can_be_saved(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=4)
    with serving(voice) as live:
        page = open_page(live.url)
        page.evaluate(
            "() => { window.AudioContext = class { constructor() { throw new Error('no card') } } }"
        )
        page.click("#speak")
        wait_for_status(page, "Done")
        assert "no card" in page.inner_text("#error")
        assert len(saved(page)) == 44 + 4 * FRAME * 2


def test_without_a_secure_context_the_page_speaks_all_the_same(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=6)
    with serving(voice) as live:
        # Chromium calls the older audio interface deprecated.
        page = open_page(f"http://plain.test:{live.port}", allow=("ScriptProcessorNode",))
        assert page.evaluate("isSecureContext") is False
        page.click("#speak")
        wait_for_status(page, "Done")
        assert page.inner_text("#played") == page.inner_text("#made") == "0:00.4"
