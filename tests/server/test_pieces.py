"""Pieces of whole and of live text."""

from __future__ import annotations

import threading
import time

import pytest
from fake_voice import FakeLiveStream, FakeVoice
from hypothesis import given, settings
from hypothesis import strategies as st

from kazeia_server.errors import TextTimeout
from kazeia_server.synthesis.pieces import LiveText, Piece, TextFront, WholeText
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.text.pieces import Split

LONG = "The first sentence is here. And a second one follows it, longer than the first. " * 20


def front(live: bool = False, split: Split = "auto", clean: bool = True) -> TextFront:
    return TextFront(FakeVoice().info, clean=clean, split=split, language="auto", live=live)


def whole(text: str, **options: bool) -> list[tuple[str, str]]:
    source = WholeText(text, front(**options))
    pieces = []
    while (piece := source.next()) is not None:
        pieces.append((piece.complete(), piece.pause))
    return pieces


def live(parts: list[str], **options: bool) -> list[tuple[str, str]]:
    source = LiveText(front(live=True, **options), 10)
    for part in parts:
        source.push(part)
    source.finish()
    pieces = []
    while (piece := source.next()) is not None:
        pieces.append((piece.complete(), piece.pause))
    return pieces


def test_a_long_text_begins_with_a_short_piece_and_loses_nothing() -> None:
    pieces = whole(LONG)
    assert pieces[0] == ("The first sentence is here.", "sentence")
    assert len(pieces) > 3
    assert all(len(text) <= 300 for text, _ in pieces)
    assert " ".join(text for text, _ in pieces) == LONG.strip()


def test_the_first_piece_of_a_long_text_needs_only_its_beginning() -> None:
    class Counting(TextFront):
        fed = 0

        def feed(self, text: str) -> list:  # type: ignore[type-arg]
            self.fed += len(text)
            return super().feed(text)

    counting = Counting(FakeVoice().info, clean=True, split="auto", language="auto", live=False)
    source = WholeText(LONG * 20, counting)
    first = source.next()
    assert first is not None
    assert counting.fed <= 1000


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_live_pieces_do_not_depend_on_how_the_text_arrives(sizes: list[int]) -> None:
    parts, at = [], 0
    while at < len(LONG):
        size = sizes[len(parts) % len(sizes)]
        parts.append(LONG[at : at + size])
        at += size
    assert live(parts) == live([LONG])


@pytest.mark.parametrize("text", ["", "   ", "...", "***", "🙂", "\u200b", "<b></b>"])
def test_nothing_to_say_is_no_piece(text: str) -> None:
    assert whole(text) == []
    assert live(list(text)) == []


def test_what_cannot_be_spoken_is_left_out_of_a_text() -> None:
    assert [text for text, _ in whole("Hello.\n\n***\n\nWorld.")] == ["Hello.", "World."]


def test_text_reaches_an_attached_voice_as_it_comes() -> None:
    source = LiveText(front(live=True), 10)
    source.push("Hello ")
    piece = source.next()
    assert piece is not None
    stream = FakeLiveStream(FakeVoice(), SynthesisRequest(text=""))
    piece.attach(stream)
    source.push("big wide ")
    with stream.changed:
        assert stream.changed.wait_for(lambda: "big" in stream.text, 10)
        assert not stream.finished
    source.push("world.")
    source.finish()
    with stream.changed:
        assert stream.changed.wait_for(lambda: stream.finished, 10)
    assert stream.text == "Hello big wide world."
    assert source.next() is None


def test_flush_ends_a_piece_where_the_text_does_not() -> None:
    source = LiveText(front(live=True), 10)
    source.push("One more thing")
    source.flush()
    first = source.next()
    assert first is not None
    assert first.complete() == "One more thing"
    source.push("and another")
    source.finish()
    second = source.next()
    assert second is not None
    assert second.complete() == "and another"
    assert source.next() is None


def test_a_text_that_stops_coming_is_spoken_and_then_told() -> None:
    source = LiveText(front(live=True), 0.2)
    source.push("Hello there")
    piece = source.next()
    assert piece is not None
    assert piece.complete() == "Hello there"
    with pytest.raises(TextTimeout, match=r"0\.2 s"):
        source.next()


def test_cancel_wakes_everybody() -> None:
    source = LiveText(front(live=True), 60)
    source.push("Hello there ")
    piece = source.next()
    assert piece is not None
    results: list[object] = []
    waiting = [
        threading.Thread(target=lambda: results.append(piece.complete())),
        threading.Thread(target=lambda: results.append(source.next())),
    ]
    for thread in waiting:
        thread.start()
    time.sleep(0.05)
    source.cancel()
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
    assert None in results
    source._thread.join(10)
    assert not source._thread.is_alive()


def test_a_dropped_piece_gives_what_there_is() -> None:
    piece = Piece("so far")
    piece.drop()
    assert piece.complete() == "so far"
