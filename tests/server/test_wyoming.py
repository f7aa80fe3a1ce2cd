"""The Wyoming door over real sockets: what clients ask and what they get."""

from __future__ import annotations

import asyncio
import io
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
from fake_voice import FakeStream, FakeVoice
from live import until
from wyoming.error import Error
from wyoming.event import Event, write_event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import SynthesizeStart, SynthesizeVoice
from wyoming_live import (
    FRAME_BYTES,
    START,
    STOP,
    at_rest,
    chunk,
    listen,
    say,
    serving_wyoming,
    spoken,
    synthesize,
)

from kazeia_server.doors.wyoming.server import _Connection
from kazeia_server.errors import EngineFailure, VoiceLoadError
from kazeia_server.logging_ import logger
from kazeia_server.settings import Settings
from kazeia_server.synthesis.service import SynthesisService


class ClosedWriter:
    """Of a connection that was reset, as uvloop has it: it is told by no OSError."""

    transport = property(lambda self: self)

    def _gone(self, *_: object) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

    write = writelines = write_eof = _gone

    async def drain(self) -> None:
        self._gone()

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


@pytest.mark.parametrize("asked", [Describe().event(), synthesize()], ids=["info", "audio"])
def test_a_reset_is_a_client_that_left_and_no_fault(
    asked: Event, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        service = SynthesisService(Settings(), lambda _: FakeVoice())
        service.start()
        await service.settled()
        reader = asyncio.StreamReader()
        data = io.BytesIO()
        write_event(asked, data)
        reader.feed_data(data.getvalue())
        writer: Any = ClosedWriter()
        await _Connection(reader, writer, service, Settings()).run()
        await service.close()

    logger.addHandler(caplog.handler)
    try:
        asyncio.run(asyncio.wait_for(run(), 20))
    finally:
        logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


# ---- what it is ----------------------------------------------------------------


def test_describe_and_ping() -> None:
    with serving_wyoming(FakeVoice()) as live, live.connect() as client:
        client.send(Describe().event(), Ping(text="é").event(), Ping().event())
        info = client.receive()
        assert info is not None
        assert [voice.name for voice in Info.from_event(info).tts[0].voices] == ["anna", "Bert"]
        for text in ("é", None):
            pong = client.receive()
            assert pong is not None
            assert Pong.from_event(pong).text == text


def test_an_answer_reaches_a_client_that_closes_its_sending_half() -> None:
    with serving_wyoming(FakeVoice()) as live, live.connect() as client:
        client.send(Describe().event(), Ping(text="x").event())
        client.socket.shutdown(socket.SHUT_WR)
        client.until("info")
        client.until("pong")
        assert client.receive() is None


def test_describe_waits_a_moment_for_a_voice_that_is_almost_there() -> None:
    loaded = threading.Event()
    voice = FakeVoice()

    def load(_: Settings) -> FakeVoice:
        loaded.wait(20)
        return voice

    with serving_wyoming(load=load, ready=False) as live, live.connect() as client:
        client.send(Describe().event())
        time.sleep(0.1)
        loaded.set()
        client.until("info")


def test_describe_and_speech_while_the_voice_is_being_loaded() -> None:
    loaded = threading.Event()
    voice = FakeVoice()

    def load(_: Settings) -> FakeVoice:
        loaded.wait(30)
        return voice

    with serving_wyoming(load=load, ready=False) as live:
        for asked in (Describe().event(), synthesize(), START):
            with live.connect() as client:
                client.send(Ping(text="alive").event())
                assert client.until("pong").data["text"] == "alive"
                client.send(asked)
                assert client.error().code == "loading"
        loaded.set()
        until(lambda: live.service.state == "ready")
        with live.connect() as client:
            client.send(Describe().event())
            client.until("info")


def test_info_comes_before_the_voice_is_loaded() -> None:
    loaded = threading.Event()
    voice = FakeVoice()

    def load(_: Settings) -> FakeVoice:
        loaded.wait(30)
        return voice

    with serving_wyoming(load=load, ready=False, describe=lambda _: voice.info) as live:
        with live.connect() as client:
            client.send(Describe().event())
            info = client.until("info")
            assert [v["name"] for v in info.data["tts"][0]["voices"]] == ["anna", "Bert"]
            client.send(synthesize())
            assert client.error().code == "loading"
        loaded.set()


def test_a_voice_that_cannot_be_loaded() -> None:
    def load(_: Settings) -> FakeVoice:
        raise VoiceLoadError("no model there")

    with serving_wyoming(load=load) as live:
        for asked in (Describe().event(), synthesize(), START):
            with live.connect() as client:
                client.send(asked)
                assert client.error() == Error(text="no model there", code="voice_failed")


def test_events_of_other_services_are_passed_over() -> None:
    with serving_wyoming(FakeVoice(n_chunks=1)) as live, live.connect() as client:
        client.send(
            Event("transcribe", {"language": "en"}),
            Event("audio-chunk", {"rate": 16000, "width": 2, "channels": 1}, b"\0\0" * 1000),
            Event("select-program", {"name": "kazeia"}),
            Event("of-the-future", {"text": 3}),
            synthesize(),
        )
        assert len(listen(client).audio) == FRAME_BYTES


# ---- one-shot --------------------------------------------------------------------


def test_one_shot_and_what_the_voice_is_asked() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving_wyoming(voice) as live, live.connect() as client:
        client.send(synthesize("Hello there.", name="bert"))
        heard = listen(client)
        assert (heard.rate, heard.starts, heard.stops) == (24_000, 1, 1)
        assert len(heard.audio) == 3 * FRAME_BYTES
        client.send(synthesize("Bonjour.", language="fr_FR"))
        assert len(listen(client).audio) == 3 * FRAME_BYTES
        client.send(Event("synthesize", {"text": "Hi.", "voice": {"name": "fake"}}))
        assert len(listen(client).audio) == 3 * FRAME_BYTES
        until(lambda: at_rest(live, voice))
    asked = [(r.text, r.voice, r.language) for r in voice.requests]
    assert asked == [
        ("Hello there.", "Bert", "auto"),
        ("Bonjour.", "anna", "french"),
        ("Hi.", "anna", "auto"),
    ]


def test_requests_sent_ahead_are_spoken_in_order() -> None:
    voice = FakeVoice(n_chunks=1)
    with serving_wyoming(voice, max_concurrent=1, max_queue=0) as live, live.connect() as client:
        client.send(*(synthesize(f"Text {n}.") for n in range(10)))
        client.send(START, chunk("Text 10."), STOP, synthesize("Text 11."))
        for n in range(12):
            assert len(listen(client, stopped=n == 10).audio) == FRAME_BYTES
    assert spoken(voice) == [f"Text {n}." for n in range(12)]
    assert voice.most_open == 1


def test_too_many_requests_sent_ahead() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice) as live, live.connect() as client:
        client.send(*(synthesize("again") for _ in range(18)))
        while (event := client.receive()) is not None and event.type != "error":
            pass
        assert event is not None
        assert event.data["code"] == "busy"
        until(lambda: at_rest(live, voice))
    assert len(voice.requests) <= 1


def test_a_long_chunk_leaves_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    short = FakeStream.samples
    monkeypatch.setattr(FakeStream, "samples", lambda self, n: np.tile(short(self, n), 20))
    with serving_wyoming(FakeVoice(n_chunks=1)) as live, live.connect() as client:
        client.send(synthesize())
        heard = listen(client)
    assert len(heard.chunks) > 1
    assert max(heard.chunks) <= 16 << 10
    assert len(heard.audio) == 20 * FRAME_BYTES


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b"])
def test_a_text_without_anything_visible_is_refused(text: str) -> None:
    with serving_wyoming(FakeVoice()) as live, live.connect() as client:
        client.send(synthesize(text))
        error = client.error()
        assert error.code == "invalid_request"
        assert "empty" in error.text


@pytest.mark.parametrize("text", ["...", "***", "🙂"])
def test_a_text_in_which_nothing_can_be_spoken_is_a_short_silence(text: str) -> None:
    voice = FakeVoice()
    with serving_wyoming(voice) as live, live.connect() as client:
        client.send(synthesize(text))
        heard = listen(client)
        assert heard.audio == bytes(2 * 4800)
        client.send(START, chunk(text), STOP)
        heard = listen(client, stopped=True)
        assert heard.audio == bytes(2 * 4800)
        assert (heard.starts, heard.stops) == (1, 1)
    assert voice.requests == []


def test_ssml_is_spoken_without_its_tags() -> None:
    voice = FakeVoice(n_chunks=1)
    with serving_wyoming(voice, clean_text=False) as live, live.connect() as client:
        text = "<speak>Hello <emphasis>world</emphasis>.</speak>"
        client.send(Event("synthesize", {"text": text, "text_format": "ssml"}))
        assert len(listen(client).audio) == FRAME_BYTES
    (request,) = voice.requests
    assert "<" not in request.text
    assert "Hello" in request.text


@pytest.mark.parametrize(
    ("event", "code", "says"),
    [
        (synthesize(name="nobody"), "unknown_voice", "anna, Bert"),
        (synthesize(language="nl"), "unknown_language", "english, french"),
        (synthesize(name="anna", speaker="Bert"), "unknown_voice", "no speaker"),
        (synthesize("x" * 101), "text_too_long", "at most 100"),
        (Event("synthesize", {}), "invalid_request", "lacks the field 'text'"),
        (Event("synthesize", {"text": ["x"]}), "invalid_request", "text"),
        (Event("synthesize", {"text": "x", "voice": 3}), "invalid_request", "voice"),
        (Event("ping", {"text": 3}), "invalid_request", "text"),
        (
            Event("synthesize-start", {"voice": {"name": "nobody"}}),
            "unknown_voice",
            "anna, Bert",
        ),
        (Event("synthesize-start", {"voice": "anna"}), "invalid_request", "voice"),
        (chunk("x"), "invalid_request", "without synthesize-start"),
        (STOP, "invalid_request", "without synthesize-start"),
    ],
)
def test_what_cannot_be_done_is_said_and_ends_the_connection(
    event: Event, code: str, says: str
) -> None:
    voice = FakeVoice()
    with serving_wyoming(voice, max_text_chars=100) as live:
        with live.connect() as client:
            client.send(event)
            error = client.error()
            assert error.code == code
            assert says in error.text
        assert len(say(live)) == 3 * FRAME_BYTES


@pytest.mark.parametrize("fail_at", [0, 2])
def test_a_failing_voice(fail_at: int) -> None:
    voice = FakeVoice(n_chunks=4, error=EngineFailure("a tensor is NaN"))
    with serving_wyoming(voice) as live:
        voice.fail_at = fail_at
        for events in ([synthesize()], [START, chunk("Hello."), STOP]):
            with live.connect() as client:
                client.send(*events)
                heard = listen(client, stopped=True)
                assert heard.lost
                assert (heard.stops, heard.stopped) == (0, False)
                assert heard.error == Error(text="a tensor is NaN", code="engine_error")
                assert len(heard.audio) == fail_at * FRAME_BYTES
        voice.fail_at = None
        assert len(say(live)) == 4 * FRAME_BYTES


def test_an_unplanned_failure_keeps_its_details() -> None:
    voice = FakeVoice()
    with serving_wyoming(voice) as live:
        voice.fail_open = RuntimeError("secret path")
        with live.connect() as client:
            client.send(synthesize())
            error = client.error()
            assert error.code == "engine_error"
            assert "secret" not in error.text


# ---- streaming -------------------------------------------------------------------


FIRST = (
    "The kitchen light is on, and so is the lamp in the hall that nobody ever turns off, "
    "whatever it may cost. "
)
SECOND = (
    "The front door is closed and locked, the garage is not, and the window upstairs has been "
    "open since this morning. "
)


@pytest.mark.parametrize("takes_live_text", [False, True])
def test_speech_begins_while_text_arrives(takes_live_text: bool) -> None:
    voice = FakeVoice(n_chunks=2, live=takes_live_text)
    with serving_wyoming(voice) as live, live.connect() as client:
        client.send(SynthesizeStart(voice=SynthesizeVoice(name="Bert")).event())
        for text in (FIRST[:10], FIRST[10:], SECOND[:50]):
            client.send(chunk(text))
        assert client.until("audio-start").data["rate"] == 24_000
        assert client.until("audio-chunk").payload
        # Only now does the text go on.
        for text in (SECOND[50:60], SECOND[60:]):
            client.send(chunk(text))
        client.send(synthesize(FIRST + SECOND))
        client.send(STOP)
        kinds = []
        while (event := client.receive()) is not None:
            kinds.append(event.type)
            if event.type == "synthesize-stopped":
                break
        assert kinds[-2:] == ["audio-stop", "synthesize-stopped"]
        assert kinds.count("audio-stop") == 1
        assert kinds.count("audio-start") == 0
        until(lambda: at_rest(live, voice))
        # The repeated text is not spoken, and the connection serves on.
        assert " ".join(spoken(voice)).split() == (FIRST + SECOND).split()
        assert {request.voice for request in voice.requests} == {"Bert"}
        client.send(synthesize("More."))
        assert listen(client).audio
        assert spoken(voice)[-1] == "More."


@pytest.mark.parametrize("text", ["Hello 👩‍👩‍👧 world, 1234.56!", "你好，世界。", "Straße."])
@pytest.mark.parametrize("takes_live_text", [False, True])
def test_any_cut_of_the_text_is_the_same_text(text: str, takes_live_text: bool) -> None:
    voice = FakeVoice(n_chunks=1, live=takes_live_text)
    with serving_wyoming(voice) as live, live.connect() as client:
        for pieces in ([text], list(text)):
            client.send(START, *(chunk(piece) for piece in pieces), STOP)
            assert listen(client, stopped=True).audio
    texts = spoken(voice)
    half = len(texts) // 2
    assert any(texts)
    assert texts[:half] == texts[half:]


@pytest.mark.parametrize("pieces", [(), ("",), (" ", "\n", "\u200b")])
def test_a_streaming_request_without_visible_text(pieces: tuple[str, ...]) -> None:
    voice = FakeVoice()
    with serving_wyoming(voice) as live, live.connect() as client:
        for _ in range(2):
            client.send(START, *(chunk(piece) for piece in pieces), synthesize("".join(pieces)))
            client.send(STOP)
            heard = listen(client, stopped=True)
            assert (heard.stopped, heard.starts, heard.error) == (True, 0, None)
    assert voice.requests == []


def test_no_slot_is_taken_before_there_is_text() -> None:
    voice = FakeVoice(n_chunks=1)
    with serving_wyoming(voice, max_concurrent=1, max_queue=0) as live:
        with live.connect() as waiting:
            waiting.send(START, chunk("  "), Ping().event())
            waiting.until("pong")
            assert len(say(live)) == FRAME_BYTES
            waiting.send(chunk("Now."), STOP)
            assert len(listen(waiting, stopped=True).audio) == FRAME_BYTES


def test_text_that_comes_while_waiting_for_a_slot_is_kept() -> None:
    gate = threading.Event()
    voice = FakeVoice(n_chunks=1, gate=gate)
    with serving_wyoming(voice, max_concurrent=1, max_queue=1) as live:
        with live.connect() as first, live.connect() as second:
            first.send(synthesize("Hold."))
            until(lambda: live.service.running == 1)
            second.send(START, chunk("One "))
            until(lambda: live.service.waiting == 1)
            second.send(chunk("two "), chunk("three."), STOP, Ping().event())
            second.until("pong")
            gate.set()
            assert len(listen(second, stopped=True).audio) == FRAME_BYTES
            assert listen(first).audio
    assert spoken(voice)[-1] == "One two three."


def test_too_much_streamed_text() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice, max_text_chars=50) as live:
        for early in (" ", "A sentence to speak. And"):
            with live.connect() as client:
                client.send(START, chunk(early))
                if early.strip():
                    client.until("audio-chunk")
                client.send(chunk("x" * 50))
                while (event := client.receive()) is not None and event.type != "error":
                    pass
                assert event is not None
                assert event.data["code"] == "text_too_long"
            until(lambda: at_rest(live, voice))


def test_a_text_that_stops_coming() -> None:
    voice = FakeVoice(n_chunks=1)
    with serving_wyoming(voice, text_timeout_s=0.3) as live, live.connect() as client:
        client.send(START, chunk("This is a sentence. And this is no"))
        heard = listen(client, stopped=True)
        assert heard.lost
        assert not heard.stopped
        assert heard.error is not None
        assert heard.error.code == "text_timeout"
        until(lambda: at_rest(live, voice))


def test_start_within_a_streaming_request() -> None:
    with serving_wyoming(FakeVoice()) as live, live.connect() as client:
        client.send(START, START)
        assert "synthesize-stop" in client.error().text


def test_busy() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice, max_concurrent=1, max_queue=0) as live:
        with live.connect() as first:
            first.send(synthesize())
            first.until("audio-chunk")
            for events in ([synthesize()], [START, chunk("Hi.")]):
                with live.connect() as second:
                    second.send(*events)
                    assert second.error().code == "busy"
            first.until("audio-chunk")
