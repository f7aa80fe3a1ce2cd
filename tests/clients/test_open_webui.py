"""Open WebUI's own audio routes, with the settings of its page: `pytest -m clients`."""

from __future__ import annotations

import base64
import io
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import av
import programs
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from integration_pages import VOICES, block, fields, here
from live import Live, serving

pytestmark = pytest.mark.clients

N = 10
SECONDS = N * FRAME / RATE


def settings_of_the_page(live: Live) -> dict[str, str]:
    """The environment that the exports of the page make."""
    exports = here(block("open-webui", "sh", "export AUDIO_TTS_ENGINE"), live)
    shown = subprocess.run(
        ["env", "-i", "bash", "-euc", f"{exports}\nexport -p"], capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    names = [shlex.split(line)[2] for line in shown.stdout.splitlines()]
    return dict(name.split("=", 1) for name in names if name.startswith("AUDIO_"))


def browser(live: Live, folder: Path, *calls: list[Any], **changed: str) -> list[list[Any]]:
    environment = {
        "FROM_INIT_PY": "true",  # as its command `open-webui serve` sets it
        "DATA_DIR": str(folder),
        "WEBUI_SECRET_KEY": "test",
        "VECTOR_DB": "none",  # documents are not what is tested; its default would be imported
        **settings_of_the_page(live),
        **changed,
    }
    answers: list[list[Any]] = programs.run(
        "open-webui", "open_webui_run.py", orders=calls, **environment
    )
    return [[status, kind, base64.b64decode(content)] for status, kind, content in answers]


def seconds_of(content: bytes) -> float:
    with av.open(io.BytesIO(content), format="mp3") as container:
        return sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))


def test_the_settings_of_the_page(tmp_path: Path) -> None:
    voice = FakeVoice(n_chunks=N, voices=VOICES)
    said = {"input": "A sentence of an answer.", "voice": "serena"}  # as its page sends it
    with serving(voice, api_keys=("secret",)) as live:
        voices, models, config, first, again, default, failed = browser(
            live,
            tmp_path,
            ["GET", "/voices", None],
            ["GET", "/models", None],
            ["GET", "/config", None],
            ["POST", "/speech", said],
            ["POST", "/speech", said],
            ["POST", "/speech", {"input": "Another sentence."}],
            ["POST", "/speech", {"input": "A third one.", "voice": "nobody"}],
            AUDIO_TTS_OPENAI_API_KEY="secret",
        )
    assert json.loads(voices[2])["voices"] == [{"id": name, "name": name} for name in VOICES]
    assert "tts-1" in [model["id"] for model in json.loads(models[2])["models"]]
    for answer in (first, default):
        assert (answer[0], answer[1]) == (200, "audio/mpeg")
        assert abs(seconds_of(answer[2]) - SECONDS) < 0.1
    assert again == first  # from its files
    assert failed[0] == 400
    assert "400, message='Bad Request'" in json.loads(failed[2])["detail"]  # all it tells
    asked = [(request.text, request.voice, request.language) for request in voice.requests]
    assert asked == [
        ("A sentence of an answer.", "serena", "english"),
        ("Another sentence.", "vivian", "english"),
    ]
    # The form in its admin panel says the same as the environment.
    kept, [shown] = json.loads(config[2])["tts"], fields("open-webui")
    assert kept["ENGINE"] == shown["Text-to-Speech Engine"].lower()
    assert kept["MODEL"] == shown["TTS Model"]
    assert kept["VOICE"] == shown["TTS Voice"]
    assert kept["SPLIT_ON"] == shown["Response Splitting"].lower()
    assert kept["OPENAI_PARAMS"] == json.loads(shown["Additional Parameters"])
    assert kept["OPENAI_API_BASE_URL"] == here(shown["API Base URL"], live)


def test_a_wrong_address_shows_the_names_that_are_not_ours(tmp_path: Path) -> None:
    with serving(FakeVoice(voices=VOICES)) as live:
        (answer,) = browser(
            live,
            tmp_path,
            ["GET", "/voices", None],
            AUDIO_TTS_OPENAI_API_BASE_URL=live.url,  # without /v1
        )
    names = [voice["id"] for voice in json.loads(answer[2])["voices"]]
    assert names == ["alloy", "echo", "fable", "onyx", "nova", "shimmer"]
