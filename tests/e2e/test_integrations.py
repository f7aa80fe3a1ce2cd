"""The pages of clients/integrations: their commands, and what each program sends, against a server.

The programs themselves are run by tests/clients; here what they send is sent in their place.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import av
import httpx
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from integration_pages import FOLDER, PAGES, VOICES, blocks, fields, here, text_of
from live import Live, serving
from wyoming.audio import AudioChunk, AudioStart
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)
from wyoming_live import serving_wyoming

SECTIONS = ("Settings", "Check", "Limits of this client", "Latency", "Troubleshooting")
N = 10
SECONDS = N * FRAME / RATE


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds_of(content: bytes) -> float:
    with av.open(io.BytesIO(content)) as container:
        return sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))


# ---- the pages -------------------------------------------------------------------


def test_the_index_names_every_page() -> None:
    linked = re.findall(r"\]\(([a-z-]+)\.md\)", text_of("README"))
    assert sorted(linked) == sorted(PAGES)
    assert len(PAGES) == 5


@pytest.mark.parametrize("page", PAGES)
def test_every_page_tells_the_same_things(page: str) -> None:
    headings = re.findall(r"^## (.*)$", text_of(page), re.M)
    assert [heading for heading in headings if heading in SECTIONS] == list(SECTIONS)


@pytest.mark.parametrize("page", [page for page in (*PAGES, "README") if blocks(page, "sh")])
def test_the_commands_of_a_page(page: str, tmp_path: Path) -> None:
    (tmp_path / "curlrc").write_text("noproxy = *\nmax-time = 20\n", "utf-8")
    with serving(FakeVoice(n_chunks=N, voices=VOICES)) as live:
        for code in blocks(page, "sh"):
            said = run("bash", "-euc", f"export CURL_HOME=.\n{here(code, live)}", cwd=tmp_path)
            assert "curl" not in code or said or list(tmp_path.glob("speech.*"))
            for name in set(re.findall(r"-o (speech\.\w+)", code)):
                content = (tmp_path / name).read_bytes()
                assert len(content) > 1000
                if name.endswith(".pcm"):
                    assert len(content) == 2 * N * FRAME
                else:
                    assert abs(seconds_of(content) - SECONDS) < 0.1


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with serving(FakeVoice(voices=("other",))) as live, pytest.raises(AssertionError):
        run("bash", "-euc", here(blocks("sillytavern", "sh")[0], live), cwd=tmp_path)


def test_home_assistant_s_port_is_asked_what_it_offers(tmp_path: Path) -> None:
    voice = FakeVoice(voices=VOICES)
    with serving(voice) as live, serving_wyoming(voice) as wyoming:
        [ask] = blocks("home-assistant", "bash")
        line = run("bash", "-euc", here(ask, live, wyoming.port), cwd=tmp_path)
        assert json.loads(line)["type"] == "info"
        assert line.startswith('{"type": "info"')
        [describe] = blocks("home-assistant", "python")
        said = run(sys.executable, "-c", here(describe, live, wyoming.port), cwd=tmp_path)
        assert said == "True ['vivian', 'serena']\n"


# ---- what the programs send ----------------------------------------------------------


def post(live: Live, body: dict[str, object], **headers: str) -> httpx.Response:
    with httpx.Client(trust_env=False) as client:
        return client.post(f"{live.url}/v1/audio/speech", json=body, headers=headers, timeout=20)


def test_open_webui() -> None:
    """routers/audio/__init__.py of open-webui 0.12.4."""
    [shown] = fields("open-webui")
    voice = FakeVoice(n_chunks=N, voices=VOICES)
    with serving(voice, api_keys=("secret",)) as live:
        # Both lists are asked for without a key; `id` and `name` are what is read.
        voices = live.get("/v1/audio/voices").json()["voices"]
        assert [(each["id"], each["name"]) for each in voices] == [(v, v) for v in VOICES]
        assert shown["TTS Voice"] in VOICES
        models = live.get("/v1/audio/models").json()["models"]
        assert shown["TTS Model"] in [each["id"] for each in models]

        body: dict[str, object] = {"input": "A sentence.", "voice": shown["TTS Voice"]}
        body |= {"model": shown["TTS Model"], **json.loads(shown["Additional Parameters"])}
        answer = post(live, body, Authorization="Bearer secret")
        # This type alone is kept as it is.
        assert answer.headers["content-type"] == "audio/mpeg"
        assert abs(seconds_of(answer.content) - SECONDS) < 0.1
        assert (voice.requests[-1].voice, voice.requests[-1].language) == ("vivian", "english")

        refused = post(live, body | {"voice": "nobody"}, Authorization="Bearer secret")
        assert "vivian, serena" in refused.json()["error"]["message"]  # what it shows


def test_sillytavern() -> None:
    """src/endpoints/openai.js of sillytavern 1.19.0; the browser cuts the names at the commas."""
    [typed] = fields("sillytavern")
    voice = FakeVoice(n_chunks=N, voices=VOICES)
    assert typed["Provider Endpoint"].endswith("/v1/audio/speech")
    with serving(voice) as live:
        for name in typed["Available Voices (comma separated)"].split(","):
            body: dict[str, object] = {
                "input": "A text.",
                "response_format": "mp3",
                "voice": name,
                "speed": float(typed["Speed"]),
                "model": typed["Model"],
            }
            answer = post(live, body, Authorization="Bearer")  # no key is set
            assert answer.status_code == 200, answer.text
            assert abs(seconds_of(answer.content) - SECONDS) < 0.1
    assert [request.voice for request in voice.requests] == list(VOICES)


def test_home_assistant() -> None:
    """components/wyoming/tts.py of Home Assistant 2026.2 and 2026.11, text that is streamed."""
    words = ["The washing ", "machine has", " finished. ", "It is half past ten."]

    async def events(client: AsyncTcpClient) -> AsyncIterator[Event]:
        while (event := await client.read_event()) is not None:
            yield event
            if SynthesizeStopped.is_type(event.type):  # until then it goes on reading
                return

    async def talk(port: int, name: str | None) -> tuple[AudioStart, bytes]:
        voice = SynthesizeVoice(name=name, speaker=None) if name else None
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(SynthesizeStart(voice=voice).event())
            for word in words:
                await client.write_event(SynthesizeChunk(text=word).event())
            await client.write_event(Synthesize(text="".join(words), voice=voice).event())
            await client.write_event(SynthesizeStop().event())
            heard = [event async for event in events(client)]
        assert SynthesizeStopped.is_type(heard[-1].type)
        starts = [AudioStart.from_event(e) for e in heard if AudioStart.is_type(e.type)]
        # It believes the first header; a later one would go unnoticed.
        assert len({(start.rate, start.width, start.channels) for start in starts}) == 1
        chunks = [AudioChunk.from_event(e) for e in heard if AudioChunk.is_type(e.type)]
        return starts[0], b"".join(chunk.audio for chunk in chunks)

    voice = FakeVoice(n_chunks=N, voices=VOICES)
    with serving_wyoming(voice) as live:
        for name in ("serena", None):
            start, samples = live.call(asyncio.wait_for(talk(live.port, name), 20))
            assert (start.rate, start.width, start.channels) == (RATE, 2, 1)
            made = sum(stream.made for stream in voice.streams)
            assert len(samples) >= 2 * made * FRAME > 0
            assert {request.voice for request in voice.requests} == {name or "vivian"}
            voice.requests.clear()
            voice.streams.clear()


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_which_version_was_looked_at(page: str) -> None:
    row = next(line for line in text_of("README").splitlines() if f"({page}.md)" in line)
    versions = set(re.findall(r"\d+\.\d+\.\d+", row))
    assert versions
    project = (FOLDER.parents[1] / "pyproject.toml").read_text("utf-8")
    makefile = (FOLDER.parents[1] / "Makefile").read_text("utf-8")
    assert any(version in project + makefile for version in versions)
