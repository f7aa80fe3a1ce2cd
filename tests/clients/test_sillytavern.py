"""SillyTavern's own server, and its page in a Chromium: `pytest -m clients`."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import av
import httpx
import programs
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from integration_pages import VOICES, fields, here
from live import serving, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),  # its first start compiles its page
]

N = 10
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROVIDER = "OpenAI Compatible"
VOICE_FIELD = "Available Voices (comma separated)"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def tavern() -> Iterator[str]:
    """The address of a running SillyTavern, with the data folder of earlier runs."""
    folder = programs.installed("sillytavern")
    program = programs.installed("sillytavern/node_modules/sillytavern/server.js")
    port = free_port()
    command = ["node", str(program), "--port", str(port), "--browserLaunchEnabled=false"]
    command += ["--dataRoot", str(folder / "data"), "--configPath", str(folder / "config.yaml")]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=program.parent, stdout=log, stderr=log)

    def answers() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text("utf-8")
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/csrf-token", trust_env=False).is_success
        return False

    try:
        until(answers, 840)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture
def page(tavern: str) -> Iterator[Page]:
    """Its page, with the settings of the speech provider shown."""
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        pytest.fail(f"none of {', '.join(CHROMIUM)} is on the path")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        shown = browser.new_page()
        shown.set_default_timeout(240_000)
        shown.goto(tavern, wait_until="domcontentloaded")
        shown.wait_for_selector(f"#tts_provider option[value='{PROVIDER}']", state="attached")
        shown.evaluate("name => $('#tts_provider').val(name).trigger('change')", PROVIDER)
        shown.wait_for_selector("#openai_compatible_tts_endpoint", state="attached")
        yield shown
        browser.close()


FILL = """([label, value]) => {
  const named = [...document.querySelectorAll('#tts_provider_settings label')];
  const found = named.find((each) => each.textContent.trim().startsWith(label + ':'));
  if (!found) throw new Error('no field ' + label);
  $('#' + found.htmlFor).val(value).trigger('input');
}"""
SET_KEY = """async (key) => {
  const secrets = await import('/scripts/secrets.js');
  await secrets.writeSecret(secrets.SECRET_KEYS.CUSTOM_OPENAI_TTS, key);
}"""
VOICE_NAMES = """() => {
  $('#tts_voices').trigger('click');
  return new Promise((done) => {
    const look = () => {
      const names = [...document.querySelectorAll('.voice_preview .voice_name')];
      if (names.length) done(names.map((name) => name.textContent)); else setTimeout(look, 50);
    };
    look();
  });
}"""


PREVIEW = """async (name) => {
  const real = window.fetch;
  const answer = new Promise((done) => {
    window.fetch = async (...request) => {
      const response = await real(...request);
      if (request[0] === '/api/openai/custom/generate-voice') {
        window.fetch = real;
        const body = new Uint8Array(await response.clone().arrayBuffer());
        done([response.status, Array.from(body)]);
      }
      return response;
    };
  });
  tts_preview(name);
  return await answer;
}"""


def preview(page: Page, name: str) -> tuple[int, bytes]:
    """Press the triangle beside a voice; what SillyTavern's server answers its page."""
    status, body = page.evaluate(PREVIEW, name)
    return status, bytes(body)


def test_the_settings_of_the_page(page: Page) -> None:
    voice = FakeVoice(n_chunks=N, voices=VOICES)
    [typed] = fields("sillytavern")
    with serving(voice, api_keys=("secret",)) as live:
        assert page.locator("#openai_compatible_tts_key span").text_content() == "API Key"
        for label, value in typed.items():
            if label != "API Key":
                page.evaluate(FILL, [label, here(value, live)])
        page.evaluate(SET_KEY, "secret")
        names = page.evaluate(VOICE_NAMES)
        assert [name.strip() for name in names] == list(VOICES)
        for name in names:
            status, sound = preview(page, name)
            assert status == 200, sound
            with av.open(io.BytesIO(sound), format="mp3") as container:
                frames = list(container.decode(audio=0))
            heard = sum(frame.samples / frame.sample_rate for frame in frames)
            assert abs(heard - N * FRAME / RATE) < 0.1

        page.evaluate(FILL, [VOICE_FIELD, "nobody"])
        status, message = preview(page, "nobody")
        assert status == 500  # whatever the server said
        assert b"vivian, serena" in message
    assert [request.voice for request in voice.requests] == list(VOICES)
    assert {request.output.name for request in voice.requests} == {"mp3"}
