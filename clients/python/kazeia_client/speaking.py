"""What `kazeia-client speak` and `kazeia speak` do: speech of a server into a file, or aloud."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kazeia_client.errors import KazeiaError, UsageError
from kazeia_client.formats import AudioFormat, FormatName, format_of_file
from kazeia_client.options import SpeechOptions
from kazeia_client.playback import Player
from kazeia_client.retry import Retry
from kazeia_client.speech import SpeechStats
from kazeia_client.sync_client import Client
from kazeia_client.text_source import Text
from kazeia_client.wav import WavWriter, wav_header

__all__ = ["SpeakOrder", "open_client", "speak"]

Tell = Callable[[str], None]
_Write = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class SpeakOrder:
    """`text`: "-" is standard input, spoken while it comes; `output`: "-" is standard output.

    `url` and `key` as of Client; `wait_s` seconds for a server that starts or is busy.
    """

    text: str
    output: Path | None
    play: bool
    options: SpeechOptions = field(default_factory=SpeechOptions)
    url: str | None = None
    key: str | None = None
    wait_s: float = 30.0


def open_client(url: str | None, key: str | None, wait_s: float, tell: Tell) -> Client:
    """A client that tells why it waits."""

    def waiting(error: KazeiaError, delay_s: float) -> None:
        tell(f"waiting {delay_s:.1f} s: {error}")

    return Client(url, api_key=key, retry=Retry(budget_s=wait_s, waiting=waiting))


def speak(order: SpeakOrder, tell: Tell) -> SpeechStats:
    """Speak; the suffix of the output chooses its format.

    `tell` gets one line for people now and then.  Raises KazeiaError, OSError.
    """
    if order.output is None and not order.play:
        raise UsageError("nothing to do: give -o FILE, or --play")
    if not order.text.strip():
        raise UsageError("text is empty: expected something to say")
    wanted = format_of_file(order.output)
    if order.play and wanted not in ("wav", "pcm"):
        raise UsageError(f"{wanted} cannot be played while it is written: expected a .wav or .pcm")
    if sys.stdout is None and str(order.output) == "-":
        raise UsageError("standard output is closed: expected somewhere to write to")
    if sys.stdin is None and order.text == "-":
        raise UsageError("standard input is closed: expected a text there")
    text: Text = _standard_input() if order.text == "-" else order.text
    sent: FormatName = "pcm" if wanted == "wav" else wanted  # its header is made here
    options: SpeechOptions = {**order.options, "response_format": sent}
    with open_client(order.url, order.key, order.wait_s, tell) as client:
        with client.stream(text, **options) as speech, ExitStack() as stack:
            writes = _sinks(order, wanted, speech.format, stack, tell)
            for data in speech:
                for write in writes:
                    write(data)
        stats = speech.stats
    assert stats is not None
    for warning in stats.warnings:
        tell(f"warning: {warning}")
    if stats.was_cut:
        tell(f"warning: the speech was cut ({stats.ended})")
    if order.output is not None and str(order.output) != "-":
        tell(f"wrote {order.output} ({stats.audio_s:.2f} s)")
    return stats


def _sinks(
    order: SpeakOrder, wanted: FormatName, format: AudioFormat, stack: ExitStack, tell: Tell
) -> list[_Write]:
    """What takes the audio; closed by `stack`."""
    writes: list[_Write] = []
    if order.output is not None and str(order.output) == "-":
        stdout = sys.stdout.buffer
        stack.callback(stdout.flush)
        if wanted == "wav":
            stdout.write(wav_header(None, format))
        writes.append(_flushed(stdout))
    elif order.output is not None and wanted == "wav":
        stack.enter_context(_read_by_somebody(order.output))
        writes.append(stack.enter_context(WavWriter(order.output, format)).write)
    elif order.output is not None:
        stack.enter_context(_read_by_somebody(order.output))
        writes.append(_flushed(stack.enter_context(order.output.open("wb"))))
    if order.play:
        # Somebody who asked for a file too gets that, whatever the loudspeaker does.
        warn = (lambda why: tell(f"warning: {why}")) if order.output is not None else None
        writes.append(stack.enter_context(Player(format, warn=warn)).write)
    return writes


@contextmanager
def _read_by_somebody(output: Path) -> Iterator[None]:
    """A pipe that has a name: unlike that of standard output, it is this command's own."""
    try:
        yield
    except BrokenPipeError:
        raise KazeiaError(f"whoever read {output} has left") from None


def _flushed(file: BinaryIO) -> _Write:
    def write(data: bytes) -> None:
        file.write(data)
        file.flush()

    return write


def _standard_input() -> Iterator[str]:
    """Text as it arrives."""
    said = False
    data = iter(lambda: os.read(sys.stdin.fileno(), 1 << 16), b"")
    try:
        for text in codecs.iterdecode(data, "utf-8"):
            said = said or not text.isspace()
            yield text
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8: {error.reason}") from None
    if not said:
        raise UsageError("standard input had no text")
