"""clients/web on a page of another site, against a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fake_voice import RATE, FakeVoice
from live import Live, serving, until
from sound import heard, n_blocks, sounding, wait_for_silence, whole_before_heard

from kazeia_server.errors import EngineFailure

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from conftest import OpenPage, Site


def wait_for(page: Page, name: str, text: str) -> None:
    page.wait_for_function(
        "([name, text]) => document.getElementById(name).textContent.includes(text)",
        arg=[name, text],
    )


def example(open_page: OpenPage, site: Site, live: Live, key: str = "", **options: Any) -> Page:
    page = open_page(site.example, ready=False, **options)
    page.fill("#server", live.url)
    page.fill("#key", key)
    return page


# Follows the events of a Speech that the test's own script makes.
RECORD = """() => {
window.record = (speech) => {
  window.events = [];
  for (const type of ["start", "firstaudio", "underrun", "made", "done", "cancelled", "error",
                      "blocked", "soundless"]) {
    speech.addEventListener(type, ({ detail }) =>
      window.events.push([type, detail?.code ?? detail?.ended ?? null]));
  }
  return speech;
};
}"""


def scripted(open_page: OpenPage, site: Site, live: Live, **options: Any) -> Page:
    """An empty page of the other site with `speech`, made by the module at the server's address."""
    page = open_page(site.origin + "/empty.html", ready=False, **options)
    page.evaluate(RECORD)
    page.evaluate(
        """async (url) => {
          window.kazeia = await import(url + "/kazeia.js");
          window.speech = record(new kazeia.Speech(url));
        }""",
        live.url,
    )
    return page


SAY = "speech.speak('Hello.').finished.then((stats) => stats.ended, (error) => error.code)"

# What is heard first may have been the last to be made.
ORDERS = (["start", "firstaudio", "made", "done"], ["start", "made", "firstaudio", "done"])


def events(page: Page) -> list[list[Any]]:
    """What was told so far: the type of each event, and the code or ending it tells."""
    found: list[list[Any]] = page.evaluate("events")
    return found


def kinds(page: Page) -> list[str]:
    return [kind for kind, _ in events(page)]


# ---- the example page ---------------------------------------------------------------------------


def test_the_example_speaks_from_another_site(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=30)
    with serving(voice, cors_origins=(site.origin,)) as live:
        page = example(open_page, site, live, tap=live, rate=RATE)
        page.click("#load")
        wait_for(page, "status", "2 voices")
        page.select_option("#voice", "Bert")
        with whole_before_heard(page, voice):
            page.click("#speak")
        wait_for(page, "status", "Done: 2.4 s of speech, first sound after")
        wait_for(page, "status", "0 underruns")
        sound, expected = heard(page), sounding(voice, 30)
        np.testing.assert_array_equal(sound[: len(expected)], expected)
        assert np.all(np.abs(sound[len(expected) :][200:]) < 1e-4), "sound after the end"
        assert voice.requests[-1].voice == "Bert"
        assert page.is_disabled("#stop")


def test_the_example_writes_bit_by_bit(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=12)
    with serving(voice, cors_origins=(site.origin,)) as live:
        page = example(open_page, site, live)
        page.fill("#text", "One two three four five six.")
        page.click("#write")
        wait_for(page, "status", "Speaking")
        assert live.service.running == 1
        assert voice.texts[-1] != "One two three four five six.", "it did not speak meanwhile"
        wait_for(page, "status", "Done")
        assert voice.texts[-1] == "One two three four five six."
        # Waiting for text is none; for the speech after the last word, it may be one.
        assert page.inner_text("#status").endswith((" 0 underruns", " 1 underruns"))


def test_stop_is_silence_and_ends_the_work(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.01)
    with serving(voice, cors_origins=(site.origin,)) as live:
        page = example(open_page, site, live, tap=live, rate=RATE)
        page.click("#speak")
        wait_for(page, "status", "Speaking")
        page.click("#stop")
        wait_for(page, "status", "Stopped")
        until(lambda: live.service.running == 0)
        wait_for_silence(page)
        before = n_blocks(page)
        page.wait_for_function("n => heard.length > n + 50", arg=before)
        assert page.evaluate("n => heard.slice(n).every((b) => b.every((v) => v === 0))", before)


def test_a_site_that_is_not_allowed_is_told_so(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice()
    with serving(voice, cors_origins=("https://elsewhere.test",)) as live:
        refused = ("CORS", "WebSocket connection", "Failed to load resource")
        page = example(open_page, site, live, allow=refused)
        page.click("#speak")
        wait_for(page, "error", f"{live.url} does not let pages of {site.origin} use it")
        wait_for(page, "error", "KZTTS_CORS_ORIGINS")
        page.fill("#text", "again")
        page.click("#load")
        wait_for(page, "error", "(forbidden_origin)")
        assert voice.requests == []


def test_a_server_that_is_not_there_is_told_so(open_page: OpenPage, site: Site) -> None:
    with serving(FakeVoice(), cors_origins=(site.origin,)) as live:
        pass
    gone = ("WebSocket connection", "CONNECTION_REFUSED")
    page = example(open_page, site, live, allow=gone)
    page.click("#speak")
    wait_for(page, "error", f"The server {live.url} cannot be reached. (unreachable)")
    page.fill("#server", "ftp://example.test")
    page.click("#speak")
    wait_for(page, "error", "expected an address of http or https")


def test_keys(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice, cors_origins=(site.origin,), api_keys=("open sesame",)) as live:
        page = example(open_page, site, live, "wrong", allow=("401",))
        page.click("#speak")
        wait_for(page, "error", "(invalid_api_key)")
        page.click("#load")
        wait_for(page, "error", "(invalid_api_key)")
        page.fill("#key", "")
        page.click("#speak")
        wait_for(page, "error", "(invalid_api_key)")
        page.fill("#key", "open sesame")
        page.click("#speak")
        wait_for(page, "status", "Done")
        assert page.inner_text("#error") == ""
        assert len(voice.requests) == 1


def test_the_example_looks_right(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    with serving(FakeVoice(n_chunks=4), cors_origins=(site.origin,)) as live:
        for width in (1000, 360):
            page = example(open_page, site, live, viewport={"width": width, "height": 700})
            page.click("#speak")
            wait_for(page, "status", "Done")
            page.screenshot(path=tmp_path / f"example-{width}.png")
            assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
            unnamed = """() => [...document.querySelectorAll("input, select, textarea")].filter(
              (element) => !element.labels?.[0]?.textContent.trim()).length"""
            assert page.evaluate(unnamed) == 0


# ---- the module ---------------------------------------------------------------------------------


def test_the_module_comes_from_the_server(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=10)
    with serving(voice, cors_origins=("*",)) as live:
        page = scripted(open_page, site, live, tap=live, rate=RATE)
        page.mouse.click(5, 5)
        with whole_before_heard(page, voice):
            page.evaluate("window.u = speech.speak('Hello.', { seed: 7 }); 0")
        stats = page.evaluate("u.finished")
        assert (stats["ended"], stats["n_chunks"]) == ("eos", 10)
        assert voice.requests[-1].seed == 7
        assert kinds(page) in ORDERS
        expected = sounding(voice, 10)
        np.testing.assert_array_equal(heard(page)[: len(expected)], expected)


def test_without_permission_the_module_is_not_to_be_had(open_page: OpenPage, site: Site) -> None:
    with serving(FakeVoice()) as live:
        page = open_page(site.origin + "/empty.html", ready=False, allow=("CORS", "Failed to load"))
        outcome = page.evaluate(
            "(url) => import(url).then(() => 'loaded', (error) => error.name)",
            live.url + "/kazeia.js",
        )
        assert outcome == "TypeError"


def test_under_a_prefix(open_page: OpenPage, site: Site) -> None:
    with serving(FakeVoice(n_chunks=3), cors_origins=("*",), root_path="/speech") as live:
        page = open_page(site.origin + "/empty.html", ready=False)
        ended = page.evaluate(
            """async (url) => {
              const { Speech } = await import(url + "/kazeia.js");
              const speech = new Speech(url);  // without a slash at its end
              const { voices } = await speech.voices();
              const stats = await speech.speak("Hello.").finished;
              return [voices.length, stats.ended];
            }""",
            live.url + "/speech",
        )
        assert ended == [2, "eos"]


def test_a_new_utterance_replaces_the_old_one_and_its_writer(
    open_page: OpenPage, site: Site
) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.01)
    with serving(voice, cors_origins=("*",), max_concurrent=1, max_queue=0) as live:
        page = scripted(open_page, site, live)
        page.mouse.click(5, 5)
        page.evaluate("window.first = speech.begin(); first.write('One two three ')")
        page.wait_for_function("() => events.some(([type]) => type === 'firstaudio')")
        voice.n_chunks = 3
        outcome = page.evaluate(
            """async () => {
              const second = speech.begin();
              const taken = [first.write("stale"), second.write("fresh ")];
              first.end();
              first.cancel();  // of the past: nothing to it
              second.write("words");
              second.end();
              return [await first.finished, first.state, taken, (await second.finished).ended,
                      second.state, second.write("late"), speech.utterance];
            }"""
        )
        assert outcome == [None, "cancelled", [False, True], "eos", "done", False, None]
        assert voice.texts[-1] == "fresh words"
        assert kinds(page).count("cancelled") == 1


def test_text_from_a_generator(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=6)
    with serving(voice, cors_origins=("*",)) as live:
        page = scripted(open_page, site, live)
        page.mouse.click(5, 5)
        outcome = page.evaluate(
            """async () => {
              const fine = await speech.speak(["a ", "b ", "c"]).finished;
              async function* broken() { yield "d "; throw new Error("the model is gone"); }
              const failure = await speech.speak(broken()).finished.catch((error) => error);
              let returned = false;
              async function* endless() {
                try {
                  for (;;) { yield "e "; await new Promise((go) => setTimeout(go, 20)); }
                } finally { returned = true; }
              }
              const interrupted = speech.speak(endless());
              await new Promise((go) => setTimeout(go, 100));
              interrupted.cancel();
              await new Promise((go) => setTimeout(go, 100));
              return [fine.ended, failure.code, failure.message, returned];
            }"""
        )
        told = "The text broke off: Error: the model is gone"
        assert outcome == ["eos", "text_failed", told, True]
        assert "a b c" in voice.texts
        until(lambda: live.service.running == 0)


def test_the_server_comes_back(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.05)
    gone = ("WebSocket connection", "CONNECTION_REFUSED")
    with serving(voice, cors_origins=("*",), shutdown_timeout_s=0) as live:
        page = scripted(open_page, site, live, allow=gone)
        page.mouse.click(5, 5)
        page.evaluate("window.first = speech.speak('Hello.'); 0")
        page.wait_for_function("() => events.some(([type]) => type === 'firstaudio')")
    assert page.evaluate("first.finished.catch((error) => error.code)") == "shutting_down"
    assert page.evaluate(SAY) == "unreachable"
    assert page.evaluate("speech.voices().catch((error) => error.code)") == "unreachable"
    again = FakeVoice(n_chunks=3)
    with serving(again, cors_origins=("*",), port=live.port):
        assert page.evaluate(SAY) == "eos"
        assert [code for kind, code in events(page) if kind == "error"] == [
            "shutting_down",
            "unreachable",
        ]
    # An idle connection broke with that server: nobody need notice.
    with serving(FakeVoice(n_chunks=3), cors_origins=("*",), port=live.port):
        assert page.evaluate(SAY) == "eos"


def test_a_connection_that_closes_is_not_spoken_into(open_page: OpenPage, site: Site) -> None:
    with serving(FakeVoice(n_chunks=3), cors_origins=("*",)) as live:
        page = scripted(open_page, site, live)
        page.mouse.click(5, 5)
        page.evaluate(
            """() => {
              window.sockets = [];
              window.WebSocket = class extends WebSocket {
                constructor(...given) { super(...given); sockets.push(this); }
              };
            }"""
        )
        assert page.evaluate(SAY) == "eos"
        closing = "sockets[0].close(); const state = sockets[0].readyState;"
        outcome = page.evaluate(f"() => {{ {closing} return {SAY}.then((e) => [state, e]); }}")
        assert outcome == [2, "eos"]  # CLOSING
        assert page.evaluate("sockets.length") == 2


def test_a_failing_voice_is_an_error(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=3, error=EngineFailure("a tensor is NaN"))
    with serving(voice, cors_origins=("*",)) as live:
        voice.fail_at = 1
        page = scripted(open_page, site, live)
        page.mouse.click(5, 5)
        failure = page.evaluate(
            """async () => {
              const error = await speech.speak("Hello.").finished.catch((error) => error);
              return [error instanceof kazeia.SpeechError, error.code, error.message];
            }"""
        )
        assert failure[:2] == [True, "engine_error"]
        assert "NaN" in failure[2]
        voice.fail_at = None
        assert page.evaluate(SAY) == "eos"


def test_volume(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=25)
    with serving(voice, cors_origins=("*",)) as live:
        page = scripted(open_page, site, live, tap=live, rate=RATE)
        page.mouse.click(5, 5)
        wrong = "(v) => { try { speech.volume = v; } catch (error) { return error.message; } }"
        assert page.evaluate(wrong, 1.5) == "volume 1.5: expected 0 to 1"
        with whole_before_heard(page, voice):
            page.evaluate("speech.volume = 0.25; window.u = speech.speak('Hello.'); 0")
        page.evaluate("u.finished")
        expected = sounding(voice, 25) * np.float32(0.25)
        np.testing.assert_array_equal(heard(page)[: len(expected)], expected)
        wait_for_silence(page)
        voice.n_chunks = 48
        with whole_before_heard(page, voice):
            page.evaluate("window.heard = []; window.u = speech.speak('Hello.'); 0")
        page.wait_for_function("() => heard.some((block) => block.some((value) => value !== 0))")
        page.evaluate("speech.volume = 0; u.finished")
        sound, full = heard(page), sounding(voice, 48) * np.float32(0.25)
        assert not sound[-RATE // 2 :].any(), "it is not silent"
        n = min(len(sound), len(full))
        loud = np.abs(full[:n]) > 0.02
        gains = sound[:n][loud] / full[:n][loud]
        assert np.all(np.diff(gains) < 1e-3), "it does not only fall"
        between = np.sum((gains > 0.05) & (gains < 0.95))
        assert between > 0.005 * RATE, "a step: it clicks"


def test_underruns_are_told(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=10, delay_s=0.25)  # 80 ms of speech each 250 ms
    with serving(voice, cors_origins=("*",)) as live:
        page = scripted(open_page, site, live)
        page.mouse.click(5, 5)
        gaps = page.evaluate(
            """async () => {
              const gaps = [];
              speech.addEventListener("underrun", ({ detail }) => gaps.push(detail));
              await speech.speak("Hello.").finished;
              return gaps;
            }"""
        )
        assert [gap["count"] for gap in gaps] == list(range(1, len(gaps) + 1))
        assert len(gaps) >= 2
        assert gaps[-1]["gap"] > gaps[0]["gap"] > 0


SPEAKS_BY_ITSELF = """<!doctype html>
<link rel="icon" href="data:,">
<script type="module">
  import { Speech } from "SERVER/kazeia.js";
  const speech = new Speech("SERVER");
  for (const type of ["blocked", "firstaudio", "made", "done", "error", "soundless"]) {
    speech.addEventListener(type, () => console.log(type));
  }
  speech.speak("Hello.");
</script>
"""


def test_sound_waits_for_the_visitor_where_the_browser_wants_it(
    browser: Browser, executable: str, site: Site
) -> None:
    arguments = ["--no-sandbox", "--autoplay-policy=document-user-activation-required"]
    strict = browser.browser_type.launch(executable_path=executable, args=arguments)
    try:
        page = strict.new_page()
        told: list[str] = []
        page.on("console", lambda message: told.append(message.text))

        def wait_until_told(*kinds: str) -> None:
            # Without looking into the page, which would count as a touch of the visitor.
            for _ in range(400):
                if set(kinds) <= set(told):
                    return
                page.wait_for_timeout(25)
            raise AssertionError(told)

        with serving(FakeVoice(n_chunks=5), cors_origins=("*",)) as live:
            html = SPEAKS_BY_ITSELF.replace("SERVER", live.url)
            (site.folder / "page.html").write_text(html, "utf-8")
            page.goto(site.origin + "/page.html")
            wait_until_told("made", "blocked")
            page.wait_for_timeout(300)
            assert "firstaudio" not in told
            page.mouse.click(5, 5)
            wait_until_told("firstaudio", "done")
            assert not {"error", "soundless"} & set(told)
    finally:
        strict.close()


def test_a_site_with_a_strict_policy(open_page: OpenPage, site: Site) -> None:
    with serving(FakeVoice(n_chunks=3), cors_origins=(site.origin,)) as live:
        sockets = live.url.replace("http", "ws")
        site.policy = f"default-src 'none'; script-src {live.url}; connect-src {live.url} {sockets}"
        page = scripted(open_page, site, live, allow=("Refused to load the image", "img-src"))
        page.mouse.click(5, 5)
        assert page.evaluate(SAY) == "eos"
        assert page.evaluate("speech.voices().then(({ voices }) => voices.length)") == 2
        assert "soundless" not in kinds(page)


def test_without_its_worklet_it_says_why_and_goes_on(open_page: OpenPage, site: Site) -> None:
    voice = FakeVoice(n_chunks=5)
    with serving(voice, cors_origins=("*",)) as live:
        page = scripted(open_page, site, live, allow=("404", "Failed to load"))
        outcome = page.evaluate(
            """async (url) => {
              const speech = record(new kazeia.Speech(url, { workletUrl: "/nowhere.js" }));
              const recording = new kazeia.Recording(24000);
              speech.addEventListener("audio", ({ detail }) => recording.add(detail));
              let message = "";
              speech.addEventListener("soundless", ({ detail }) => { message = detail.message; });
              const stats = await speech.speak("Hello.").finished;
              return [stats.ended, message, recording.seconds];
            }""",
            live.url,
        )
        assert outcome[0] == "eos"
        assert f"the audio worklet {site.origin}/nowhere.js cannot be loaded" in outcome[1]
        assert outcome[2] == pytest.approx(0.4)
        # A copy of the worklet and what it imports will do.
        page.evaluate(
            """async (url) => {
              const speech = record(new kazeia.Speech(url, { workletUrl: "/kazeia/worklet.js" }));
              await speech.speak("Hello.").finished;
            }""",
            live.url,
        )
        assert kinds(page) in ORDERS


def test_close_gives_everything_back_and_speaks_again(open_page: OpenPage, site: Site) -> None:
    with serving(FakeVoice(n_chunks=3), cors_origins=("*",)) as live:
        page = scripted(open_page, site, live, tap=live, rate=RATE)
        page.mouse.click(5, 5)
        page.evaluate("speech.speak('Hello.').finished")
        assert page.evaluate("speech.close().then(() => audioContext.state)") == "closed"
        assert page.evaluate(SAY) == "eos"
        assert page.evaluate("audioContext.state") == "running"


def test_what_is_asked_wrongly_is_refused(open_page: OpenPage, site: Site) -> None:
    with serving(FakeVoice(n_chunks=3), cors_origins=("*",)) as live:
        page = scripted(open_page, site, live)
        attempt = """async (code) => {
          try { await (0, eval)(code); return "nothing"; }
          catch (error) { return `${error.name}: ${error.code ?? ""} ${error.message}`; }
        }"""
        for code, expected in (
            ("new kazeia.Speech('http://')", "TypeError:  server http://: expected an address"),
            ("new kazeia.Speech('file:///x')", "expected an address of http or https"),
            ("new kazeia.Speech('/', { answerTimeout: 0 })", "RangeError:  answerTimeout 0"),
            ("speech.speak('a', { response_format: 'mp3' })", 'expected "pcm"'),
            ("speech.speak('a', { voice: 'nobody' }).finished", "SpeechError: unknown_voice"),
            ("speech.speak('a', { colour: 1 }).finished", "SpeechError: invalid_request"),
            ("speech.speak('  ').finished", "SpeechError: invalid_request"),
        ):
            assert expected in page.evaluate(attempt, code), code
        assert json.dumps(events(page)).count("error") == 3
        assert page.evaluate("speech.speak('a').finished.then((stats) => stats.ended)") == "eos"
