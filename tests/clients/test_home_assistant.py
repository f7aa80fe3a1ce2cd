"""Home Assistant's own Wyoming integration and Assist pipeline: `pytest -m clients`."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import programs
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from integration_pages import VOICES, block, fields
from wyoming_live import serving_wyoming

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure

pytestmark = pytest.mark.clients

N = 10


class OneBroken(FakeVoice):
    """One of its voices cannot speak."""

    def _opened(self, stream: Any) -> Any:
        if stream.request.voice == "broken":
            raise EngineFailure("a tensor is NaN")
        return super()._opened(stream)


def samples(answer: dict[str, Any]) -> bytes:
    """The samples of what a player is given: WAV whose header tells no length."""
    assert "sound" in answer, answer
    sound = base64.b64decode(answer["sound"])
    assert sound[:4] == b"RIFF"
    assert int.from_bytes(sound[24:28], "little") == RATE
    return sound[44:]


def test_everything_a_user_does(tmp_path: Path) -> None:
    voice = OneBroken(n_chunks=N, voices=(*VOICES, "broken"))
    address, assistant = fields("home-assistant")
    message = re.findall(r"message: (.*)", block("home-assistant", "yaml"))[0]
    long = ["It is now ", "half past ten, and the sun", " shines all over the country. ", "Go out."]
    orders = [
        {"do": "speak", "text": message, "voice": "broken"},
        {"do": "stream", "pieces": ["It breaks."], "voice": "broken"},
        {"do": "speak", "text": message},
        {"do": "speak", "text": message, "voice": "serena", "language": "fr"},
        {"do": "stream", "pieces": ["The first sentence is this. ", "And"], "last": " another."},
        {"do": "assist", "pieces": long, "language": "en", "voice": "serena"},
        {"do": "assist", "pieces": ["Half past ten."], "language": "en", "voice": "serena"},
    ]
    with serving_wyoming(voice) as live:
        results = programs.run(
            "home-assistant",
            "home_assistant_run.py",
            str(live.port),
            str(tmp_path),
            orders=orders,
        )
    added = results["added"]
    assert added["fields"] == [field.lower() for field in address]
    assert added["title"] == assistant["Text-to-speech"]
    assert added["entity"] == "tts.kazeia"
    assert added["streams_text"]
    assert set(added["languages"]) == {"en", "fr"}
    assert added["voices"]["en"] == sorted(voice.voices)
    assert assistant["Voice"] in VOICES

    *broken, plain, other, stream, assist, short = results["done"]
    assert [answer.get("sound", "") for answer in broken] == ["", ""]  # and nobody is left waiting
    texts = [getattr(made, "text", made.request.text).strip() for made in voice.streams]
    assert texts == [
        message,
        message,
        "The first sentence is this.",
        "And another.",
        "It is now half past ten, and the sun shines all over the country.",
        "Go out.",
        "Half past ten.",
    ]
    spoken_by = [made.request.voice for made in voice.streams]
    assert spoken_by == ["vivian", "serena", "vivian", "vivian", "serena", "serena", "serena"]
    for answer, made in ((plain, 0), (other, 1), (short, 6)):
        said = b"".join(pcm16(voice.streams[made].samples(n)) for n in range(N))
        assert samples(answer)[: len(said)] == said
    for answer in (stream, assist):
        assert len(samples(answer)) >= 2 * 2 * N * FRAME
    assert stream["early"] > 44  # heard before the text was complete
    assert assist["streamed"]
    assert not short["streamed"]  # up to 60 characters are not
    assert assist["errors"] == short["errors"] == []
