"""Who can use the page, and from where: keyboard, screen reader, phone, path prefix, API key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn
from fake_voice import FakeVoice
from live import serving, until
from starlette.types import ASGIApp, Receive, Scope, Send

from kazeia_server.app import create_app
from kazeia_server.serving import server_config
from kazeia_server.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from conftest import OpenPage


def wait_for_status(page: Page, text: str) -> None:
    page.wait_for_function(
        "text => document.getElementById('status').textContent.includes(text)", arg=text
    )


# What a checker of accessibility looks at first.  Returns complaints.
CHECKS = """
() => {
  const complaints = [];
  const name = (element) =>
    [...(element.labels ?? [])].map((label) => label.textContent).join(" ").trim() ||
    element.getAttribute("aria-label") ||
    (element.matches("button, a") ? element.textContent.trim() : "");
  for (const element of document.querySelectorAll("input, select, textarea, button, a, [role=img]"))
    if (element.type !== "hidden" && element.name !== "username" && !name(element))
      complaints.push(`no name: ${element.outerHTML}`);
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) complaints.push("an id is used twice");
  for (const attribute of ["for", "aria-describedby", "aria-labelledby"])
    for (const element of document.querySelectorAll(`[${attribute}]`))
      for (const id of element.getAttribute(attribute).split(" "))
        if (!ids.includes(id)) complaints.push(`${attribute} names ${id}`);
  if (!document.documentElement.lang) complaints.push("no language");
  if (!document.title) complaints.push("no title");
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((h) => Number(h.tagName[1]));
  if (levels[0] !== 1 || levels.some((level, n) => n > 0 && level > levels[n - 1] + 1))
    complaints.push(`headings ${levels}`);
  for (const landmark of ["header", "main", "footer"])
    if (document.querySelectorAll(landmark).length !== 1) complaints.push(`not one ${landmark}`);

  // Contrast of text with the nearest background (WCAG 2.2, 1.4.3: 4.5).
  const parts = (colour) => colour.match(/[\\d.]+/g).map((value, n) =>
    Number(value) * (colour.startsWith("color(srgb") && n < 3 ? 255 : 1));
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) =>
      v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility()) continue;
    if (element.closest(":disabled, .strip, noscript, .skip")) continue;
    const ink = parts(getComputedStyle(element).color);
    let ground = element;
    while (ground && parts(getComputedStyle(ground).backgroundColor)[3] === 0)
      ground = ground.parentElement;
    const paper = parts(getComputedStyle(ground ?? document.body).backgroundColor);
    let alpha = 1;
    for (let e = element; e !== ground && e; e = e.parentElement)
      alpha *= Number(getComputedStyle(e).opacity);
    const seen = ink.slice(0, 3).map((v, n) => alpha * v + (1 - alpha) * paper[n]);
    const [dark, light] = [luminance(seen), luminance(paper.slice(0, 3))].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) complaints.push(`contrast ${contrast.toFixed(2)}: ${node.data.trim()}`);
  }
  if (document.scrollingElement.scrollWidth > innerWidth) complaints.push("wider than the window");
  return complaints;
}
"""


def complaints(page: Page) -> list[str]:
    page.wait_for_function("() => document.getAnimations().length === 0")
    found: list[str] = page.evaluate(CHECKS)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390, 320])
def test_looks_and_labels(open_page: OpenPage, tmp_path: Path, scheme: str, width: int) -> None:
    voice = FakeVoice(n_chunks=12)
    with serving(voice, max_text_chars=300) as live:
        size = {"width": width, "height": 800}
        page = open_page(live.url, color_scheme=scheme, viewport=size, device_scale_factor=2)
        assert complaints(page) == []
        page.click("#speak")
        wait_for_status(page, "Done")
        page.click("summary")
        page.check("#typing", force=True)
        page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)
        assert complaints(page) == []
        page.uncheck("#typing", force=True)
        page.fill("#text", "a" * 301)
        page.click("#speak")
        page.wait_for_selector("#error:visible")
        assert complaints(page) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (min(map(int, ground[4:-1].split(","))) > 128) == (scheme == "light")


def test_the_checks_can_fail(open_page: OpenPage) -> None:
    with serving(FakeVoice()) as live:
        page = open_page(live.url)
        page.evaluate(
            """() => {
              document.querySelector("label[for=voice]").remove();
              document.body.insertAdjacentHTML("beforeend", "<p class=faint id=text>faint</p>");
              const faint = document.querySelector(".faint");
              faint.style.color = "#999";
              faint.style.width = "3000px";
              document.querySelector("h1").remove();
            }"""
        )
        found = " ".join(complaints(page))
    for part in ("no name: <select", "used twice", "contrast", "wider", "headings"):
        assert part in found


def test_the_waveform_is_drawn(open_page: OpenPage) -> None:
    count = """() => {
      const canvas = document.getElementById("waveform");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height - 40);
      let filled = 0;
      for (let n = 3; n < data.length; n += 4) filled += data[n] > 0;
      return [filled, canvas.width / canvas.clientWidth];
    }"""
    with serving(FakeVoice(n_chunks=10)) as live:
        page = open_page(live.url, device_scale_factor=2, allow=("willReadFrequently",))
        empty, ratio = page.evaluate(count)
        assert ratio == pytest.approx(2, abs=0.01)
        page.click("#speak")
        wait_for_status(page, "Done")
        filled, _ = page.evaluate(count)
        assert filled > 2 * empty
        label = page.get_attribute("#waveform", "aria-label")
        assert label is not None
        assert "0.8 seconds made, 0.8 played" in label


def test_everything_can_be_done_with_the_keyboard(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.01)
    with serving(voice) as live:
        page = open_page(live.url)
        reached: list[str] = []
        while "speak" not in reached:
            assert len(reached) < 20
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate("document.activeElement.id || document.activeElement.tagName")
            )
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            if reached[-1] != "typing":  # its picture has the outline
                assert page.evaluate(outline) != "none", reached[-1]
        expected = ["typing", "text", "voice", "language", "speed", "SUMMARY", "speak"]
        assert [name for name in reached if name in expected] == expected
        page.focus("#text")
        page.keyboard.press("Control+Enter")
        wait_for_status(page, "Speaking")
        page.keyboard.press("Escape")
        until(lambda: live.service.running == 0)
        page.focus("#speed")
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert page.get_attribute("#speed", "aria-valuetext") == "1.23×"


def test_figures_are_not_read_out_and_states_are(open_page: OpenPage) -> None:
    with serving(FakeVoice()) as live:
        page = open_page(live.url)
        assert page.get_attribute("#status", "role") == "status"
        assert page.get_attribute("#error", "role") == "alert"
        assert page.locator(".figures").locator("output, [aria-live], [role=status]").count() == 0


def test_with_reduced_motion_nothing_moves_by_itself(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=8)
    with serving(voice) as live:
        page = open_page(live.url, reduced_motion="reduce")
        running = """() => [...document.querySelectorAll("*")].filter((element) =>
          getComputedStyle(element).transitionDuration !== "0s" ||
          getComputedStyle(element).animationName !== "none").length"""
        assert page.evaluate(running) == 0
        page.click("#speak")
        wait_for_status(page, "Done")
        assert page.inner_text("#played") == "0:00.6"


# ---- path prefix ----------------------------------------------------------------------------


class StrippingProxy:
    """A proxy that serves an application under a prefix of which it does not tell it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            path = scope["path"]
            assert path.startswith(self._prefix + "/"), f"{path} is outside the prefix"
            path = path.removeprefix(self._prefix)
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)


@contextmanager
def proxied(voice: FakeVoice, prefix: str) -> Iterator[str]:
    settings = Settings(port=0, log_level="warning", wyoming_port=None)
    app = create_app(settings, load=lambda _: voice)
    config = server_config(StrippingProxy(app, prefix), settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="proxy")
    thread.start()
    try:
        until(lambda: server.started and app.state.service.state == "ready", 30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}{prefix}/"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def test_under_the_prefix_of_a_proxy(open_page: OpenPage) -> None:
    with proxied(FakeVoice(n_chunks=3), "/tools/speech") as url:
        page = open_page(url)
        page.click("#speak")
        wait_for_status(page, "Done")


def test_under_its_own_root_path(open_page: OpenPage) -> None:
    with serving(FakeVoice(n_chunks=3), root_path="/speech") as live:
        page = open_page(live.url + "/speech/")
        page.click("#speak")
        wait_for_status(page, "Done")


# ---- keys, loading, failing -------------------------------------------------------------------


def test_an_api_key_is_asked_for_and_used(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice, api_keys=("open sesame",)) as live:
        page = open_page(live.url, ready=False, allow=("401",))
        page.wait_for_selector("#key-form:visible")
        assert page.is_disabled("#speak")
        assert page.evaluate("document.activeElement.id") == "key"
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#error:visible")
        assert "not accepted" in page.inner_text("#error")
        page.fill("#key", "open sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector("#speak:enabled")
        assert page.is_hidden("#key-form")
        assert page.is_hidden("#error")
        page.click("#speak")
        wait_for_status(page, "Done")
        page.reload()  # kept for this tab
        page.wait_for_selector("#speak:enabled")
        page.click("#speak")
        wait_for_status(page, "Done")
        assert len(voice.requests) == 2
        assert page.evaluate("localStorage.length") == 0
        assert "sesame" not in page.url


def test_a_key_that_stops_being_accepted_is_asked_for_again(open_page: OpenPage) -> None:
    with serving(FakeVoice(n_chunks=3), api_keys=("right",)) as live:
        page = open_page(live.url, ready=False, allow=("401",))
        page.fill("#key", "right")
        page.click("#key-form button")
        page.wait_for_selector("#speak:enabled")
        page.evaluate("() => sessionStorage.setItem('kazeia.key', 'wrong')")
        page.reload()
        page.wait_for_selector("#key-form:visible")


def test_a_voice_that_loads_is_waited_for(open_page: OpenPage) -> None:
    gate = threading.Event()

    def load(_: Settings) -> FakeVoice:
        assert gate.wait(60)
        return FakeVoice()

    with serving(load=load, ready=False) as live:
        page = open_page(live.url, ready=False, allow=("503",))
        page.wait_for_function(
            "() => document.getElementById('source').textContent.includes('being loaded')"
        )
        assert page.is_disabled("#speak")
        gate.set()
        page.wait_for_selector("#speak:enabled")


def test_a_voice_that_failed_is_explained(open_page: OpenPage) -> None:
    problem = {"code": "voice_failed", "message": "talker.gguf lacks output.weight"}
    with serving(FakeVoice()) as live:
        page = open_page(live.url, allow=("503",))
        page.route("**/v1/voices", lambda route: route.fulfill(status=503, json={"error": problem}))
        page.reload()
        page.wait_for_function(
            "() => document.getElementById('source').textContent.includes('output.weight')"
        )
        assert page.is_disabled("#speak")


def test_which_voice_speaks_is_said(open_page: OpenPage) -> None:
    voice = FakeVoice()
    with serving(voice) as live:
        page = open_page(live.url)
        assert page.inner_text("#source") == "Qwen3-TTS model fake"
        voice.info = replace(voice.info, source="built-in", follows_instructions=False)
        page.reload()
        page.wait_for_selector("#speak:enabled")
        assert page.inner_text("#source") == "Built-in voice: no Qwen3-TTS model is configured"
        page.click("summary")
        assert page.is_disabled("#instruct")
        assert page.is_visible("#instruct-hint")
