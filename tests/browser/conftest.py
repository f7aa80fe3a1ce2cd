"""Headless Chromium in front of a real server.

Needs the Playwright package and a Chromium of the system.  Where one of them is missing the tests
are skipped, and with KAZEIA_REQUIRE_BROWSER=1 they fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from live import Live
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing(what: str) -> NoReturn:
    message = f"THE WEB PAGE IS NOT TESTED: {what}"
    if os.environ.get("KAZEIA_REQUIRE_BROWSER") == "1":
        pytest.fail(message)
    pytest.skip(message)


# Not for the session: Playwright keeps an event loop running in the thread of the tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if importlib.util.find_spec("playwright") is None:
        missing("the package playwright is not installed")
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        missing(f"none of {', '.join(NAMES)} is on the path")
    from playwright.sync_api import sync_playwright

    arguments = [
        "--no-sandbox",
        # A name that is no loopback address: pages from there are no secure context.
        "--host-resolver-rules=MAP plain.test 127.0.0.1",
    ]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield chromium
        chromium.close()


# Attaches a recorder behind the page's player, and may fix the rate of the sound card.  The
# recorder is no part of the page: it sees the very samples the audio thread puts out.
TAP = """
const rate = RATE;
const RealContext = AudioContext;
const RealNode = AudioWorkletNode;
window.heard = [];
window.AudioContext = class extends RealContext {
  constructor(options = {}) {
    super(rate === null ? options : { ...options, sampleRate: rate });
    window.audioContext = this;
    const add = this.audioWorklet.addModule.bind(this.audioWorklet);
    this.audioWorklet.addModule = async (url) => {
      await add(new URL("../recorder.js", url));
      await add(url);
    };
  }
};
window.AudioWorkletNode = class extends RealNode {
  constructor(context, name, options) {
    super(context, name, options);
    const recorder = new RealNode(context, "recorder");
    recorder.port.onmessage = ({ data }) => window.heard.push(data);
    this.connect(recorder).connect(context.destination);
  }
};
window.heardBytes = () => {
  const samples = new Float32Array(window.heard.length * 128);
  window.heard.forEach((block, index) => samples.set(block, index * 128));
  return new Uint8Array(samples.buffer).toBase64();
};
"""
RECORDER = """
registerProcessor("recorder", class extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples !== undefined) this.port.postMessage(samples.slice());
    return true;
  }
});
"""


async def recorder(_: Request) -> Response:
    return Response(RECORDER, media_type="text/javascript")


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens `url`; `tap`: the server to record the sound of.

    What the page then says on the console (CSP violations are said there) or
    throws fails the test, unless it contains one of `allow`.
    """
    problems: list[str] = []
    contexts = []

    def open_it(
        url: str,
        *,
        ready: bool = True,
        tap: Live | None = None,
        rate: int | None = None,
        allow: tuple[str, ...] = (),
        **options: Any,
    ) -> Page:
        def note(text: str) -> None:
            if not any(part in text for part in allow):
                problems.append(text)

        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda m: note(f"{m.type}: {m.text}") if m.type != "verbose" else None)
        page.on("pageerror", lambda error: note(f"thrown: {error}"))
        if tap is not None:
            # The browser hides requests of worklets from Playwright: the server has to answer.
            tap.server.config.app.add_route("/recorder.js", recorder)
            page.add_init_script(TAP.replace("RATE", "null" if rate is None else str(rate)))
        page.goto(url)
        if ready:
            page.wait_for_selector("#speak:enabled")
            page.wait_for_selector("#version:not(:empty)")  # the last thing it asks for by itself
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert problems == []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
