"""Play a text while it is made, and keep it.

python save_while_playing.py "Hello." hello.wav
"""

from __future__ import annotations

import sys

from kazeia_client import Client, Player, WavWriter


def main(text: str, path: str) -> None:
    """Speak `text` aloud and into a WAV file."""
    with Client() as client, client.stream(text) as speech:
        with Player(speech.format) as player, WavWriter(path, speech.format) as file:
            for pcm in speech:
                file.write(pcm)
                player.write(pcm)  # waits where the sound card has enough
            print(f"{file.seconds:.2f} s in {path}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: save_while_playing.py TEXT FILE")
    main(*sys.argv[1:])
