"""Speak what a language model writes while it writes.

    llm "Tell me a story." | python llm_to_speech.py story.wav

The file is optional; without one the speech is played.  In a program of your own, give `stream`
the pieces your model yields in place of `written()`: any iterable of text will do.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator

from kazeia_client import Client, Player, WavWriter


def written() -> Iterator[str]:
    """Standard input, in the pieces in which it arrives."""
    data = iter(lambda: os.read(sys.stdin.fileno(), 1 << 16), b"")
    return codecs.iterdecode(data, "utf-8")


def main() -> None:
    """Speak standard input into the file named on the command line, or aloud."""
    with Client() as client, client.stream(written()) as speech:
        if len(sys.argv) > 1:
            with WavWriter(sys.argv[1], speech.format) as file:
                for pcm in speech:
                    file.write(pcm)
        else:
            with Player(speech.format) as player:
                for pcm in speech:
                    player.write(pcm)
    assert speech.stats is not None
    print(f"{speech.stats.audio_s:.2f} s of speech, ended: {speech.stats.ended}")


if __name__ == "__main__":
    main()
