"""Text that is spoken while it is being typed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_voice import FakeVoice
from live import serving, until

if TYPE_CHECKING:
    from playwright.sync_api import Page, WebSocket

    from conftest import OpenPage


def wait_for_status(page: Page, text: str) -> None:
    page.wait_for_function(
        "text => document.getElementById('status').textContent.includes(text)", arg=text
    )


def watch(page: Page) -> list[dict[str, Any]]:
    """Messages the page sends from its next load on."""
    sent: list[dict[str, Any]] = []

    def opened(socket: WebSocket) -> None:
        socket.on("framesent", lambda payload: sent.append(json.loads(payload)))

    page.on("websocket", opened)
    page.reload()
    page.wait_for_selector("#speak:enabled")
    page.fill("#text", "")
    page.check("#typing", force=True)
    return sent


def texts(sent: list[dict[str, Any]]) -> list[str]:
    return [message["text"] for message in sent if message["type"] == "input.text"]


def wait_for_sent(page: Page, sent: list[dict[str, Any]], *kinds: str) -> None:
    """Until the page has sent these, and nothing else besides."""
    for _ in range(400):
        if [message["type"] for message in sent] == list(kinds):
            return
        page.wait_for_timeout(25)  # Playwright's events come while it waits
    raise AssertionError(sent)


def test_words_are_spoken_while_the_next_are_typed(open_page: OpenPage) -> None:
    voice = FakeVoice(n_chunks=20)
    with serving(voice) as live:
        page = open_page(live.url)
        sent = watch(page)
        assert page.inner_text("#speak-label") == "Finish"
        assert page.is_visible("#typing-hint")
        page.select_option("#voice", "Bert")
        page.focus("#text")
        page.keyboard.type("Good morning to you, my fr")
        wait_for_sent(page, sent, "session.config", *["input.text"] * 5)
        assert texts(sent) == ["Good ", "morning ", "to ", "you, ", "my "]
        assert live.service.running == 1

        page.keyboard.press("Enter")
        wait_for_sent(page, sent, "session.config", *["input.text"] * 6, "input.flush")
        assert texts(sent)[-1] == "fr\n"
        page.wait_for_function("() => document.getElementById('first-sound').textContent !== '–'")
        assert live.service.running == 1, "the utterance must go on"
        wait_for_status(page, "Waiting for more text")
        assert page.inner_text("#underruns") == "0"

        page.keyboard.type("Well")
        page.keyboard.press("Control+Enter")
        wait_for_status(page, "Done")
        assert sent[0]["voice"] == "Bert"
        assert sent[-1]["type"] == "input.done"
        assert "".join(texts(sent)) == page.input_value("#text")
        until(lambda: live.service.running == 0)

        page.keyboard.type("! Next one ")  # another utterance, of what is new
        until(lambda: live.service.running == 1)
        page.keyboard.press("Escape")
        until(lambda: live.service.running == 0)
        page.keyboard.type("and more. ")  # after a stop: only what comes
        until(lambda: live.service.running == 1)
        page.click("#speak")
        wait_for_status(page, "Done")
        assert [message["type"] for message in sent].count("input.cancel") == 1
        assert "".join(texts(sent)).endswith("Well! Next one and more. ")


def test_the_end_of_a_sentence_needs_no_further_key(open_page: OpenPage) -> None:
    with serving(FakeVoice()) as live:
        page = open_page(live.url)
        sent = watch(page)
        page.focus("#text")
        page.keyboard.type("It is 3.")
        wait_for_sent(page, sent, "session.config", "input.text", "input.text", "input.text")
        assert texts(sent) == ["It ", "is ", "3."]


def test_what_was_sent_is_not_sent_again_after_an_edit(open_page: OpenPage) -> None:
    with serving(FakeVoice(n_chunks=20)) as live:
        page = open_page(live.url)
        sent = watch(page)
        page.focus("#text")
        page.keyboard.type("one two ")
        page.keyboard.press("Home")
        page.keyboard.press("Delete")
        wait_for_status(page, "cannot be changed")
        page.keyboard.press("Control+End")
        page.keyboard.type("three ")
        page.click("#speak")
        wait_for_status(page, "Done")
        assert "".join(texts(sent)).startswith("one two ")
        assert "".join(texts(sent)).endswith("three ")


def test_composed_text_is_sent_when_it_is_composed(open_page: OpenPage) -> None:
    with serving(FakeVoice(n_chunks=20)) as live:
        page = open_page(live.url)
        sent = watch(page)
        page.focus("#text")
        keyboard = page.context.new_cdp_session(page)
        for text in ("k", "か", "かん", "かんじ"):
            keyboard.send(
                "Input.imeSetComposition",
                {"text": text, "selectionStart": len(text), "selectionEnd": len(text)},
            )
        page.wait_for_timeout(200)
        assert texts(sent) == []
        keyboard.send("Input.insertText", {"text": "漢字"})
        page.wait_for_timeout(200)
        assert "".join(texts(sent)) == "漢字"


def test_an_utterance_the_server_ends_leaves_the_next_one_free(open_page: OpenPage) -> None:
    with serving(FakeVoice(n_chunks=20), text_timeout_s=0.4) as live:
        page = open_page(live.url)
        sent = watch(page)
        page.focus("#text")
        page.keyboard.type("one two ")
        until(lambda: live.service.running == 1)
        page.wait_for_function("() => document.getElementById('speak').disabled")
        until(lambda: live.service.running == 0)
        page.keyboard.type("three ")
        until(lambda: live.service.running == 1)
        page.click("#speak")
        wait_for_status(page, "Done")
        assert texts(sent)[-1] == "three "


@pytest.mark.parametrize("text", ["Hello wor", "one two three "])
def test_leaving_the_mode_ends_the_utterance(open_page: OpenPage, text: str) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.01)
    with serving(voice) as live:
        page = open_page(live.url)
        watch(page)
        page.focus("#text")
        page.keyboard.type(text)
        until(lambda: live.service.running == 1)
        page.uncheck("#typing", force=True)
        until(lambda: live.service.running == 0)
        assert page.inner_text("#speak-label") == "Speak"
        assert page.is_enabled("#speak")
