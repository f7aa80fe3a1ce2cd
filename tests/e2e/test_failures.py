"""What fails is told as what it is: to the client, in the metrics, and never as complete speech."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from fake_voice import FRAME, FakeVoice
from live import Live, Session, serving, until

from kazeia_server.errors import EngineFailure, InvalidRequest
from kazeia_server.synthesis.report import UtteranceReport

DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "synthesize": ("/synthesize", {"text": "Hello there."}),
    "synthesize streamed": ("/synthesize?stream=1", {"text": "Hello there."}),
    "openai": ("/v1/audio/speech", {"input": "Hello there.", "response_format": "pcm"}),
    "openai whole": ("/v1/audio/speech", {"input": "Hello there.", "stream": False}),
    "openai sse": ("/v1/audio/speech", {"input": "Hello there.", "stream_format": "sse"}),
    "elevenlabs": ("/v1/text-to-speech/anna", {"text": "Hello there."}),
    "elevenlabs streamed": ("/v1/text-to-speech/anna/stream", {"text": "Hello there."}),
}


def reports_of(live: Live) -> list[UtteranceReport]:
    found: list[UtteranceReport] = []
    live.service.observers.append(found.append)
    return found


def post(live: Live, door: str) -> tuple[int, bytes, bool]:
    """Status, body, and whether the body came to a proper end."""
    path, body = DOORS[door]
    data = b""
    with (
        httpx.Client(trust_env=False, timeout=20) as client,
        client.stream("POST", live.url + path, json=body) as answer,
    ):
        try:
            for part in answer.iter_raw():
                data += part
        except httpx.RemoteProtocolError:
            return answer.status_code, data, False
    return answer.status_code, data, True


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fail_at", [0, 1])
def test_a_failure_is_an_error_everywhere(door: str, fail_at: int) -> None:
    voice = FakeVoice(n_chunks=30, error=EngineFailure("a tensor is NaN"))
    with serving(voice) as live:
        voice.fail_at = fail_at if fail_at == 0 else 20
        reports = reports_of(live)
        status, body, proper = post(live, door)
        assert status == 500 or not proper
        if status == 500:
            assert json.loads(body)["error"]["code"] == "engine_error"
        until(lambda: len(reports) == 1)
        assert (reports[0].outcome, reports[0].error_code) == ("error", "engine_error")
        metrics = live.get("/metrics").text
        assert 'kazeia_errors_total{code="engine_error"} 1.0' in metrics
        assert "kazeia_cancelled_total 0.0" in metrics
        voice.fail_at = None
        assert post(live, door)[0] == 200  # the control
        until(lambda: len(reports) == 2)
        assert reports[1].outcome == "ok"


@pytest.mark.parametrize("door", [name for name in DOORS if name != "synthesize"])
def test_speech_cut_by_the_end_of_the_server_is_not_complete(door: str) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.005)
    with serving(voice, shutdown_timeout_s=0) as live:
        results: list[tuple[int, bytes, bool]] = []
        thread = threading.Thread(target=lambda: results.append(post(live, door)))
        thread.start()
        until(lambda: bool(voice.streams) and voice.streams[0].made > 20, 10)
        live.server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
    status, body, proper = results[0]
    assert status == 503 or not proper
    assert b"speech.audio.done" not in body


def test_a_websocket_tells_that_the_server_ended_the_speech() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.005)
    with serving(voice, shutdown_timeout_s=0) as live, live.connect() as websocket:
        session = Session(websocket)
        session.say("endless")
        while not isinstance(session.receive(), bytes):
            pass
        live.server.should_exit = True
        while isinstance(answer := session.receive(), bytes):
            pass
        assert (answer["type"], answer["code"]) == ("error", "shutting_down")


def test_a_live_text_that_is_refused_midway_is_an_error() -> None:
    voice = FakeVoice(n_chunks=50)
    with serving(voice) as live, live.connect() as websocket:
        session = Session(websocket)
        session.send("input.text", text="One two ")
        while not isinstance(session.receive(), bytes):
            pass

        def refuse(text: str) -> None:
            raise InvalidRequest("the voice cannot say that", param="text")

        stream = voice.streams[0]
        stream.push_text = refuse  # type: ignore[attr-defined]
        session.send("input.text", text="three four ")
        session.send("input.done")
        while isinstance(answer := session.receive(), bytes):
            pass
        assert answer["type"] == "error"
        assert (answer["code"], answer["utterance_index"]) == ("invalid_request", 0)
        voice.n_chunks = 2
        session.say("Still here.")
        session.until("session.done")


def test_a_client_that_leaves_its_upload_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    with serving(FakeVoice()) as live:
        for path in ("/synthesize", "/v1/audio/speech", "/v1/text-to-speech/anna"):
            with socket.create_connection(("127.0.0.1", live.port), timeout=5) as raw:
                raw.sendall(
                    f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\n"
                    "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{".encode()
                )
        assert live.post({"text": "Still here."}).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_underruns_are_those_of_a_listener() -> None:
    voice = FakeVoice(n_chunks=3, delay_s=0.2)  # slower than its 80 ms a chunk
    with serving(voice) as live:
        reports = reports_of(live)
        assert post(live, "synthesize")[0] == 200
        assert post(live, "synthesize streamed")[0] == 200
        until(lambda: len(reports) == 2)
        assert (reports[0].underruns, reports[0].underrun_s) == (0, 0.0)
        assert reports[1].underruns == 2
        assert 0.1 < reports[1].underrun_s < 5


def test_a_writer_that_is_late_is_no_underrun() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice) as live, live.connect() as websocket:
        reports = reports_of(live)
        session = Session(websocket)
        heard = 0
        for word in ("one ", "two ", "three "):
            session.send("input.text", text=word)
            heard += FRAME * 2
            got = 0
            while got < FRAME * 2:
                item = session.receive()
                got += len(item) if isinstance(item, bytes) else 0
            time.sleep(0.2)
        session.send("input.done")
        session.until("session.done")
        until(lambda: len(reports) == 1)
        assert reports[0].underruns == 0


def test_what_was_made_before_a_client_left_is_counted() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.005)
    with serving(voice) as live, live.connect() as websocket:
        reports = reports_of(live)
        session = Session(websocket)
        session.say("endless")
        heard = 0
        while heard < 10 * FRAME * 2:
            item = session.receive()
            heard += len(item) if isinstance(item, bytes) else 0
        session.send("input.cancel")
        session.until("audio.cancelled")
        until(lambda: len(reports) == 1)
        (report,) = reports
        assert (report.outcome, report.ended) == ("cancelled", "cancelled")
        assert report.audio_s >= 10 * 0.08
        assert report.ttfb_s is not None
        assert report.pieces == 1
        assert 'kazeia_finish_total{reason="cancelled"} 1.0' in live.get("/metrics").text
