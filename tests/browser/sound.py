"""What a page plays, recorded by the `tap` of conftest.py."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from fake_voice import FakeVoice

from kazeia_server.audio.pcm import pcm16

if TYPE_CHECKING:
    from playwright.sync_api import Page

Samples = npt.NDArray[Any]


def spoken(voice: FakeVoice, n_chunks: int) -> Samples:
    """What the server sent of the last utterance, as 16-bit samples."""
    stream = voice.streams[-1]
    data = b"".join(pcm16(stream.samples(n)) for n in range(n_chunks))
    return np.frombuffer(data, "<i2")


def sounding(voice: FakeVoice, n_chunks: int) -> Samples:
    """The same as the player puts it out, from the first sound on: a sine's first sample is 0."""
    return np.asarray(spoken(voice, n_chunks)[1:] / np.float32(32768), np.float32)


def heard(page: Page) -> Samples:
    """All that went to the sound card so far, from the first sound on."""
    data = base64.b64decode(page.evaluate("heardBytes()"))
    return np.trim_zeros(np.frombuffer(data, np.float32), "f")


def wait_for_silence(page: Page) -> None:
    """Until nothing has been played for 0.1 s: the last sound fades out, and comes here late."""
    silent = "heard.slice(-20).every((block) => block.every((value) => value === 0))"
    page.wait_for_function(f"(n) => heard.length > n + 20 && {silent}", arg=n_blocks(page))


def n_blocks(page: Page) -> int:
    """How many blocks of 128 samples have been played."""
    return int(page.evaluate("heard.length"))


@contextmanager
def whole_before_heard(page: Page, voice: FakeVoice) -> Iterator[None]:
    """What is begun inside is all there before its first sample is played, and leaving returns as
    it begins to be: however busy the machine is, it is played without a gap.

    For at most 4 s of speech, which the audio thread takes ahead.
    """
    voice.gate = threading.Event()
    made = page.evaluate("made")
    yield
    page.wait_for_function("window.audioContext?.state === 'running'")
    page.evaluate("audioContext.suspend()")
    voice.gate.set()
    page.wait_for_function("(before) => made > before", arg=made)
    page.evaluate("audioContext.resume()")
