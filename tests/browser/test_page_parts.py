"""The modules of the page by themselves, in the browser that runs them."""

from __future__ import annotations

import base64
import io
import wave
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_voice import FakeVoice
from live import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with serving(FakeVoice()) as live:
        context = browser.new_context()
        page = context.new_page()
        page.goto(live.url)
        yield page
        context.close()


def array(values: Any) -> npt.NDArray[np.float64]:
    return np.asarray(values, np.float64)


PLAYOUT = """
async ([rate, outputRate, messages]) => {
  const { PlayoutBuffer } = await import("./web/kazeia/playout.js");
  const reports = [];
  const buffer = new PlayoutBuffer(outputRate, (report) => reports.push(report));
  const out = [];
  for (const message of messages) {
    if (message.type === "render") {
      for (let n = 0; n < message.blocks; n++) {
        const block = new Float32Array(128);
        buffer.render(block);
        out.push(...block);
      }
    } else if (message.type === "write") {
      buffer.handle({ type: "write", samples: new Int16Array(message.samples) });
    } else buffer.handle(message);
  }
  return [out, reports];
}
"""


def played(
    page: Page, rate: int, output_rate: int, *messages: dict[str, Any]
) -> tuple[npt.NDArray[np.float64], list[dict[str, Any]]]:
    """What a PlayoutBuffer puts out and reports for these messages."""
    begin = {"type": "begin", "epoch": 1, "rate": rate, "live": False}
    out, reports = page.evaluate(PLAYOUT, [rate, output_rate, [begin, *messages]])
    return array(out), reports


def write(samples: npt.NDArray[Any]) -> dict[str, Any]:
    return {"type": "write", "samples": [int(value) for value in samples]}


def render(blocks: int) -> dict[str, Any]:
    return {"type": "render", "blocks": blocks}


END = {"type": "end"}


def sine(rate: int, frequency: float, n: int, amplitude: float = 0.5) -> npt.NDArray[Any]:
    t = np.arange(n) / rate
    return np.round(32767 * amplitude * np.sin(2 * np.pi * frequency * t)).astype(int)


@pytest.mark.parametrize("output_rate", [44_100, 48_000, 96_000])
@pytest.mark.parametrize("frequency", [100, 1000, 5000, 9000])
def test_resampling_up_adds_nothing(page: Page, output_rate: int, frequency: int) -> None:
    samples = sine(24_000, frequency, 4800)
    out, _ = played(page, 24_000, output_rate, write(samples), END, render(60))
    middle = slice(1000, 6000)
    expected = 0.5 * np.sin(2 * np.pi * frequency * np.arange(len(out)) / output_rate)
    error = np.sqrt(np.mean((out - expected)[middle] ** 2) / np.mean(expected[middle] ** 2))
    assert 20 * np.log10(error) < -55


@pytest.mark.parametrize(("frequency", "least", "most"), [(1000, -0.1, 0.1), (11_000, -300, -50)])
def test_resampling_down_folds_nothing(
    page: Page, frequency: int, least: float, most: float
) -> None:
    samples = sine(24_000, frequency, 9600)
    out, _ = played(page, 24_000, 16_000, write(samples), END, render(50))
    level = np.sqrt(np.mean(out[1000:5000] ** 2)) / (0.5 / np.sqrt(2))
    assert least <= 20 * np.log10(level + 1e-12) <= most


def test_equal_rates_change_nothing(page: Page) -> None:
    samples = np.random.default_rng(1).integers(-32768, 32767, 3000)
    out, reports = played(page, 24_000, 24_000, write(samples), END, render(30))
    np.testing.assert_array_equal(out[:3000], samples / 32768)
    assert np.abs(out[3200:]).max() < 1e-4
    assert reports[-1]["state"] == "idle"
    assert reports[-1]["position"] == 3000
    assert reports[-1]["underruns"] == 0


def test_the_pieces_do_not_matter(page: Page) -> None:
    samples = sine(24_000, 440, 6000)
    whole, _ = played(page, 24_000, 48_000, write(samples), END, render(100))
    cuts = [write(part) for part in np.split(samples, [1, 2, 700, 701, 3000, 5999])]
    pieces, _ = played(page, 24_000, 48_000, *cuts, END, render(100))
    np.testing.assert_array_equal(whole, pieces)


def test_playing_waits_for_the_target_but_not_behind_the_end(page: Page) -> None:
    short = sine(24_000, 440, 500)
    out, _ = played(page, 24_000, 24_000, write(short), render(20))
    assert not out.any()
    out, _ = played(page, 24_000, 24_000, write(short), END, render(20))
    assert out.any()
    out, _ = played(page, 24_000, 24_000, write(sine(24_000, 440, 1600)), render(5))
    assert out.any()


def test_an_underrun_pauses_without_a_click_and_asks_for_more(page: Page) -> None:
    first, second = sine(24_000, 440, 2013), sine(24_000, 440, 12_000)
    out, reports = played(
        page, 24_000, 24_000, write(first), render(40), write(second), END, render(120)
    )
    assert reports[-1]["underruns"] == 1
    assert reports[-1]["position"] == 14_013
    assert reports[-1]["target"] == pytest.approx(0.12)
    assert reports[-1]["gap"] == pytest.approx((40 * 128 - 2013) / 24_000, abs=0.01)
    steepest = 0.5 * 2 * np.pi * 440 / 24_000
    assert np.abs(np.diff(out)).max() < 1.5 * steepest
    assert not out[2500:5100].any()


def test_running_dry_at_the_very_end_is_no_underrun(page: Page) -> None:
    _, reports = played(
        page, 24_000, 24_000, write(sine(24_000, 440, 2013)), render(40), END, render(5)
    )
    assert reports[-1]["underruns"] == 0
    assert reports[-1]["state"] == "idle"


def test_running_dry_while_text_is_awaited_is_no_underrun(page: Page) -> None:
    live = {"type": "begin", "epoch": 2, "rate": 24_000, "live": True}
    tone = write(sine(24_000, 440, 2013))
    _, reports = played(page, 24_000, 24_000, live, tone, render(40), tone, render(40))
    assert reports[-1]["underruns"] == 0
    done = {"type": "live", "live": False}
    _, reports = played(page, 24_000, 24_000, live, tone, render(40), done, tone, render(40))
    assert reports[-1]["underruns"] == 1


def test_clear_is_silence_within_five_milliseconds(page: Page) -> None:
    tone = write(sine(24_000, 440, 24_000))
    out, reports = played(page, 24_000, 24_000, tone, render(10), {"type": "clear"}, render(20))
    assert np.abs(out[1280 + 240 :]).max() < 1e-4
    assert reports[-1]["state"] == "idle"


def test_a_second_utterance_begins_clean(page: Page) -> None:
    tone, other = sine(24_000, 440, 24_000), sine(24_000, 1000, 3000)
    again = {"type": "begin", "epoch": 2, "rate": 24_000, "live": False}
    out, reports = played(
        page, 24_000, 24_000, write(tone), render(10), again, write(other), END, render(40)
    )
    np.testing.assert_array_equal(out[1280 + 200 : 1280 + 3000], other[200:] / 32768)
    assert reports[-1]["epoch"] == 2


def test_wav(page: Page) -> None:
    data = page.evaluate(
        """async () => {
          const { Recording } = await import("./web/kazeia/recording.js");
          const recording = new Recording(22050);
          recording.add(new Int16Array([1, -2]));
          recording.add(new Int16Array([32767, -32768, 0]));
          return new Uint8Array(await recording.wav().arrayBuffer()).toBase64();
        }"""
    )
    with wave.open(io.BytesIO(base64.b64decode(data))) as reader:
        assert (reader.getframerate(), reader.getnframes()) == (22_050, 5)
        samples = np.frombuffer(reader.readframes(5), "<i2")
    assert samples.tolist() == [1, -2, 32767, -32768, 0]


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", ""),
        ("Hel", ""),
        ("Hello ", "Hello "),
        ("Hello wor", "Hello "),
        ("Hello, world!", "Hello, world!"),
        ("It costs 3.", "It costs "),
        ("It costs 3.5", "It costs "),
        ("I don't", "I "),
        ("well-kno", ""),
        ("Is it? Yes", "Is it? "),
        ("a\nb", "a\n"),
        ("你好吗", "你好吗"),
        ("東京は", "東京は"),
        ("私はABC", "私は"),
        ("안녕하세요 세", "안녕하세요 "),
        ("𠮷野", "𠮷野"),
        ("x" * 500, ""),
    ],
)
def test_complete_words(page: Page, text: str, complete: str) -> None:
    length = page.evaluate(
        """async (text) => {
          const { completeLength } = await import("./web/typing.js");
          return text.slice(0, completeLength(text));
        }""",
        text,
    )
    assert length == complete


def test_the_feed_sends_each_character_once(page: Page) -> None:
    sent = page.evaluate(
        """async () => {
          const { TypingFeed } = await import("./web/typing.js");
          const sent = [];
          const feed = new TypingFeed((text) => sent.push(text));
          feed.reset("old ");
          let text = "old ";
          for (const char of "Hello there, 3.5 times") {
            text += char;
            feed.update(text, text.length, false);
          }
          feed.update(text, text.length, true);
          const before = sent.length;
          const changed = feed.update("new Hello", 3, false);  // an edit in what was sent
          feed.update("new Hello you ", 14, false);
          return [sent.slice(0, before), changed, sent.slice(before)];
        }"""
    )
    assert sent == [["Hello ", "there, ", "3.5 ", "times"], False, [" ", "Hello you "]]


def test_peaks_keep_every_extreme_in_bounded_memory(page: Page) -> None:
    result = page.evaluate(
        """async () => {
          const { Peaks } = await import("./web/waveform.js");
          const peaks = new Peaks();
          const samples = new Int16Array(3_000_000);
          samples[1_234_567] = 32767;
          samples[2_999_999] = -32768;
          for (let at = 0; at < samples.length; at += 1000) {
            peaks.add(samples.subarray(at, at + 1000));
          }
          return [
            peaks.range(1_230_000, 1_240_000), peaks.range(0, 1_000_000),
            peaks.range(2_990_000, 3_000_000), peaks.range(3_100_000, 3_200_000),
            peaks.low.length,
          ];
        }"""
    )
    assert result[0]["high"] == pytest.approx(32767 / 32768)
    assert result[1] == {"low": 0, "high": 0}
    assert result[2]["low"] == -1
    assert result[3] is None
    assert result[4] == 4096
