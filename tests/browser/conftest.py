"""Headless Chromium in front of a real server.

Needs the Playwright package and a Chromium of the system.  Where one of them is missing the tests
are skipped, and with KAZEIA_REQUIRE_BROWSER=1 they fail.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from live import Live
    from playwright.sync_api import Browser, Page

SOURCE = Path(__file__).parents[2] / "clients" / "web"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing(what: str) -> NoReturn:
    message = f"THE WEB PAGE IS NOT TESTED: {what}"
    if os.environ.get("KAZEIA_REQUIRE_BROWSER") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="module")
def executable() -> str:
    """The path of the browser."""
    if importlib.util.find_spec("playwright") is None:
        missing("the package playwright is not installed")
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        missing(f"none of {', '.join(NAMES)} is on the path")
    return executable


# Not for the session: Playwright keeps an event loop running in the thread of the tests.
@pytest.fixture(scope="module")
def browser(executable: str) -> Iterator[Browser]:
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


# Attaches a recorder to what goes to the sound card, and may fix the card's rate.  The recorder is
# no part of the page: it sees the very samples that are put out.  `made` counts the utterances that
# have arrived.
TAP = """
const rate = RATE;
const RealContext = AudioContext;
window.heard = [];
window.AudioContext = class extends RealContext {
  constructor(options = {}) {
    super(rate === null ? options : { ...options, sampleRate: rate });
    window.audioContext = this;
    const add = this.audioWorklet.addModule.bind(this.audioWorklet);
    this.audioWorklet.addModule = async (url) => {
      await add("RECORDER_URL");
      await add(url);
    };
  }
};
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (target, ...rest) {
  if (target instanceof AudioDestinationNode) {
    const recorder = new AudioWorkletNode(this.context, "recorder");
    recorder.port.onmessage = ({ data }) => window.heard.push(data);
    connect.call(connect.call(this, recorder), target);
  }
  return connect.call(this, target, ...rest);
};
window.made = 0;
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", ({ data }) => {
      if (typeof data === "string" && JSON.parse(data).type === "session.done") window.made += 1;
    });
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
            tapped = TAP.replace("RECORDER_URL", tap.url + "/recorder.js")
            page.add_init_script(tapped.replace("RATE", "null" if rate is None else str(rate)))
        page.goto(url)
        if ready:
            page.wait_for_selector("#speak:enabled")
            page.wait_for_selector("#version:not(:empty)")  # the last thing it asks for by itself
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert problems == []


class Site(ThreadingHTTPServer):
    """A web site with the files of a folder, and no idea of Kazeia."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        class Handler(SimpleHTTPRequestHandler):
            def guess_type(self, path: Any) -> str:
                return "text/javascript" if str(path).endswith(".js") else super().guess_type(path)

            def end_headers(self) -> None:
                if site.policy:
                    self.send_header("content-security-policy", site.policy)
                super().end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        site = self
        self.folder = folder
        self.policy = ""
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.origin = f"http://127.0.0.1:{self.server_port}"
        self.example = self.origin + "/example/"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """clients/web as another site would host it; more files may be put into `tmp_path`/site."""
    folder = tmp_path / "site"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "empty.html").write_text("<!doctype html><link rel=icon href='data:,'>", "utf-8")
    server = Site(folder)
    thread = threading.Thread(target=server.serve_forever, name="site")
    thread.start()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
