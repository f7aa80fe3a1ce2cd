"""The speech protocol over real sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from fake_voice import FRAME, FakeVoice
from live import Live, Session, at_rest, serving, stalled_client, until
from websockets.exceptions import ConnectionClosed

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure


def speak_once(live: Live, text: str = "Hello.") -> bytes:
    with live.connect() as websocket:
        session = Session(websocket)
        session.say(text)
        _, audio = session.until("session.done")
        return audio


def test_two_utterances_and_goodbye() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice) as live, live.connect() as websocket:
        session = Session(websocket)
        session.send("session.config", voice="bert", language="fr", seed=3)
        for index in range(2):
            session.send("input.text", text="Hel")
            session.send("input.text", text="lo.")
            session.send("input.done")
            start = session.receive()
            assert isinstance(start, dict)
            assert start["type"] == "audio.start"
            assert (start["utterance_index"], start["sample_rate"]) == (index, 24_000)
            assert start["voice"] == "Bert"
            done, audio = session.until("audio.done")
            assert audio == b"".join(pcm16(voice.streams[0].samples(n)) for n in range(3))
            assert done["total_bytes"] == len(audio)
            assert (done["n_chunks"], done["frames"], done["ended"]) == (3, 3, "eos")
            assert 0 < done["ttfb_s"] < 5
            assert done["rtf"] == pytest.approx(0.5)
            session.until("session.done")
        session.send("session.close")
        last, _ = session.until("session.done")
        assert last == {"type": "session.done", "utterance_index": None, "total_utterances": 2}
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(timeout=5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
    assert voice.texts == ["Hello.", "Hello."]
    assert voice.requests[0].language == "french"


def test_utterances_may_be_sent_ahead() -> None:
    voice = FakeVoice(n_chunks=2, delay_s=0.01)
    with serving(voice, max_concurrent=1, max_queue=0) as live, live.connect() as websocket:
        session = Session(websocket)
        for n in range(5):
            session.say(f"text {n}")
        for n in range(5):
            done, audio = session.until("session.done")
            assert done["utterance_index"] == n
            assert len(audio) == 2 * FRAME * 2
        assert voice.texts == [f"text {n}" for n in range(5)]
        assert voice.most_open == 1


@pytest.mark.parametrize("after_chunks", [0, 1, 3])
def test_cancel_mid_stream(after_chunks: int) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.003)
    with serving(voice, max_concurrent=1, max_queue=0) as live, live.connect() as websocket:
        session = Session(websocket)
        for _ in range(5):
            session.say("An endless text.")
            heard = 0
            while heard < after_chunks:
                heard += isinstance(session.receive(), bytes)
            begun = time.perf_counter()
            session.send("input.cancel")
            session.until("audio.cancelled")
            assert time.perf_counter() - begun < 1
        # No audio after audio.cancelled: the next thing is the answer to the next message.
        session.send("nonsense")
        answer = session.receive()
        assert isinstance(answer, dict)
        assert answer["type"] == "error"
        until(lambda: voice.open_now == 0 and live.service.running == 0)


def test_text_is_spoken_while_it_is_written() -> None:
    voice = FakeVoice(n_chunks=5)
    with serving(voice) as live, live.connect() as websocket:
        session = Session(websocket)
        heard = b""
        session.send("input.text", text="One ")
        while len(heard) < FRAME * 2:
            item = session.receive()
            heard += item if isinstance(item, bytes) else b""
        for word in ("two ", "three ", "four "):
            session.send("input.text", text=word)
        session.send("input.done")
        done, rest = session.until("audio.done")
        heard += rest
        assert heard == b"".join(pcm16(voice.streams[0].samples(n)) for n in range(5))
        assert voice.texts == ["One two three four"]
        assert done["pieces"] == 1


def test_flush_speaks_what_there_is_and_the_utterance_goes_on() -> None:
    voice = FakeVoice(n_chunks=2)
    with serving(voice) as live, live.connect() as websocket:
        session = Session(websocket)
        session.send("input.text", text="First")
        session.send("input.flush")
        heard = b""
        while len(heard) < 2 * FRAME * 2:
            item = session.receive()
            heard += item if isinstance(item, bytes) else b""
        session.send("input.text", text=" and second.")
        session.send("input.done")
        done, _ = session.until("audio.done")
        assert done["pieces"] == 2
        assert voice.texts == ["First", "and second."]


def test_a_text_that_stops_coming_ends_the_utterance_but_not_the_session() -> None:
    voice = FakeVoice(n_chunks=2)
    with serving(voice, text_timeout_s=0.3) as live, live.connect() as websocket:
        session = Session(websocket)
        session.send("input.text", text="Something unfin")
        while (answer := session.receive()) is not None:
            if isinstance(answer, dict) and answer["type"] == "error":
                break
        assert isinstance(answer, dict)
        assert (answer["code"], answer["utterance_index"]) == ("text_timeout", 0)
        assert voice.texts == ["Something unfin"]
        session.send("input.text", text="ished.")  # belongs to what has ended
        session.send("input.done")
        session.say("Next.")
        done, _ = session.until("session.done")
        assert done["utterance_index"] == 1
        assert voice.texts[1:] == ["Next."]


@pytest.mark.parametrize("live_voice", [True, False])
def test_nothing_to_say_is_a_short_silence(live_voice: bool) -> None:
    voice = FakeVoice(live=live_voice)
    with serving(voice) as live, live.connect() as websocket:
        session = Session(websocket)
        for text in ("...", "***", "🙂"):
            session.say(text)
            done, audio = session.until("audio.done")
            assert done["ended"] == "empty"
            assert audio == bytes(2 * 4800)
            session.until("session.done")
        assert voice.streams == []


def test_other_formats_come_as_one_file() -> None:
    with serving(FakeVoice(n_chunks=6)) as live, live.connect() as websocket:
        session = Session(websocket)
        session.send("session.config", response_format="wav", sample_rate=16_000, speed=2.0)
        session.send("input.text", text="Hello.")
        session.send("input.done")
        data = b""
        while True:
            item = websocket.recv(timeout=10)
            if isinstance(item, bytes):
                data += item
            elif json.loads(item)["type"] == "session.done":
                break
        assert data[:4] == b"RIFF"
        assert int.from_bytes(data[24:28], "little") == 16_000
        assert data.count(b"RIFF") == 1
        assert len(data) - 44 == pytest.approx(6 * 0.08 / 2 * 16_000 * 2, abs=2000)


def test_the_other_address_speaks_the_same_protocol() -> None:
    voice = FakeVoice(n_chunks=2)
    with serving(voice) as live:
        live.ws_url = live.ws_url.replace("/ws/synthesize", "/v1/audio/speech/stream")
        assert len(speak_once(live)) == 2 * FRAME * 2


def test_a_key_may_come_in_the_first_message() -> None:
    with serving(FakeVoice(n_chunks=1), api_keys=("secret",)) as live:
        with live.connect() as websocket:
            session = Session(websocket)
            session.send("session.auth", key="secret")
            session.until("session.authorized")
            session.say("Hello.")
            session.until("session.done")
        with live.connect() as websocket:
            session = Session(websocket)
            session.send("input.text", text="Hello.")
            answer = session.receive()
            assert isinstance(answer, dict)
            assert answer["code"] == "invalid_api_key"
            with pytest.raises(ConnectionClosed) as closed:
                websocket.recv(timeout=5)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
        with live.connect(additional_headers={"authorization": "Bearer wrong"}) as websocket:
            session = Session(websocket)
            session.send("input.text", text="Hello.")
            refusal = session.receive()
            assert isinstance(refusal, dict)
            assert refusal["message"] == "the API key that was sent is not accepted"


def test_more_sessions_than_are_served_are_told() -> None:
    with serving(FakeVoice(), max_sessions=1) as live, live.connect() as first:
        Session(first).send("ping")
        Session(first).until("pong")
        with live.connect() as second:
            answer = json.loads(second.recv(timeout=5))
            assert answer["code"] == "busy"
            with pytest.raises(ConnectionClosed) as closed:
                second.recv(timeout=5)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013


def test_cancel_while_waiting_for_a_slot() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.003)
    with serving(voice, max_concurrent=1, max_queue=4) as live:
        with live.connect() as first, live.connect() as second:
            holder, waiter = Session(first), Session(second)
            holder.say("hold")
            until(lambda: live.service.running == 1)
            waiter.say("wait")
            until(lambda: live.service.waiting == 1)
            waiter.send("input.cancel")
            waiter.until("audio.cancelled")
            until(lambda: live.service.waiting == 0)
        until(lambda: voice.open_now == 0)


def test_a_client_that_vanishes_frees_its_slot() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        for polite in (True, False) * 5:
            with live.connect() as websocket:
                session = Session(websocket)
                session.say("An endless text.")
                while not isinstance(session.receive(), bytes):
                    pass
                if not polite:
                    websocket.socket.shutdown(socket.SHUT_RDWR)
            until(lambda: live.service.running == 0 and voice.open_now == 0)
        voice.n_chunks = 2
        assert len(speak_once(live)) == 2 * FRAME * 2


def test_a_client_that_vanishes_while_waiting_leaves_the_line() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=2) as live, live.connect() as first:
        Session(first).say("hold")
        until(lambda: live.service.running == 1)
        for _ in range(4):
            with live.connect() as second:
                Session(second).say("wait")
                until(lambda: live.service.waiting == 1)
            until(lambda: live.service.waiting == 0)
        Session(first).send("input.cancel")


# What a client of each door sends before it never reads again.
STALLED = {
    "/ws/synthesize": [{"type": "input.text", "text": "endless"}, {"type": "input.done"}],
    "/v1/text-to-speech/anna/multi-stream-input?output_format=pcm_48000": [
        {"text": "endless. ", "context_id": "a"},
        {"context_id": "a", "flush": True},
    ],
}


@pytest.mark.parametrize("path", STALLED)
def test_a_slow_reader_stalls_nobody_else_and_memory_is_bounded(path: str) -> None:
    voice = FakeVoice(n_chunks=None)
    with serving(voice, max_concurrent=2, send_timeout_s=60.0) as live:
        raw = stalled_client(live, path, *STALLED[path])
        try:
            until(lambda: len(voice.streams) == 1)
            stream = voice.streams[0]
            made = at_rest(stream)
            voice.n_chunks = made + 200
            begun = time.perf_counter()
            with live.connect() as websocket:
                session = Session(websocket)
                session.say("quick")
                _, audio = session.until("session.done", timeout=20)
            assert len(audio) == (made + 200) * FRAME * 2
            assert time.perf_counter() - begun < 15
            assert stream.made == made
            assert live.get("/health").status_code == 200
        finally:
            raw.close()
        until(lambda: live.service.running == 0 and voice.open_now == 0)


@pytest.mark.parametrize("path", STALLED)
def test_a_reader_that_never_reads_is_dropped(path: str) -> None:
    voice = FakeVoice(n_chunks=None)
    with serving(voice, max_concurrent=1, send_timeout_s=0.5) as live:
        raw = stalled_client(live, path, *STALLED[path])
        try:
            until(lambda: live.service.running == 1)
            until(lambda: live.service.running == 0, 20)
            assert voice.open_now == 0
        finally:
            raw.close()


def test_fifty_one_after_the_other_on_one_socket() -> None:
    voice = FakeVoice(n_chunks=2)
    with serving(voice, max_concurrent=1, max_queue=0) as live, live.connect() as websocket:
        session = Session(websocket)
        for n in range(50):
            session.say(f"text {n}")
            done, audio = session.until("session.done")
            assert done["utterance_index"] == n
            assert len(audio) == 2 * FRAME * 2
    assert len(voice.requests) == 50
    assert voice.open_now == 0


def test_eight_in_parallel_on_two_slots() -> None:
    voice = FakeVoice(n_chunks=5, delay_s=0.002)
    with serving(voice, max_concurrent=2, max_queue=8) as live, ThreadPoolExecutor(8) as pool:
        sounds = list(pool.map(lambda n: speak_once(live, f"text {n}"), range(8)))
    assert {len(audio) for audio in sounds} == {5 * FRAME * 2}
    assert voice.most_open == 2
    assert voice.open_now == 0


def test_busy_keeps_the_socket() -> None:
    gate = threading.Event()
    voice = FakeVoice(gate=gate)
    with (
        serving(voice, max_concurrent=1, max_queue=0) as live,
        live.connect() as first,
        live.connect() as second,
    ):
        holder, other = Session(first), Session(second)
        holder.say("hold")
        until(lambda: live.service.running == 1)
        other.say("refused")
        answer = other.receive()
        assert isinstance(answer, dict)
        assert (answer["type"], answer["code"]) == ("error", "busy")
        assert answer["retry_after_s"] >= 1
        gate.set()
        holder.until("session.done")
        until(lambda: live.service.running == 0)
        other.say("accepted")
        other.until("session.done")


def test_bad_messages_keep_the_socket() -> None:
    with serving(FakeVoice(n_chunks=1)) as live, live.connect() as websocket:
        session = Session(websocket)
        bad: list[str | bytes] = [
            "",
            "hello",
            "[]",
            "{}",
            '{"type": "input.text", "text": 1}',
            '{"type": "input.text", "text": "\\ud800"}',
            '{"type": "session.config", "temperature": NaN}',
            '{"type": "session.config", "voice": "nobody"}',
            '{"type": "session.config", "language": "klingon"}',
            '{"type": "session.config", "sample_rate": 800}',
            '{"type": "input.done"}',
            "[" * 100_000,
            b"\0\1\2\3",
            json.dumps({"type": "input.text", "text": "x" * 300_000}),
            json.dumps({"type": "input.text", "text": "x" * 100_000}),
        ]
        for message in bad:
            websocket.send(message)
            answer = session.receive()
            assert isinstance(answer, dict)
            assert answer["type"] == "error"
            assert answer["message"]
            assert answer["code"] != "internal_error"
        session.send("input.done")  # closes the utterance that was too long
        session.say("a\0b")  # cleaned
        session.until("session.done")
        session.say("Still here.")
        _, audio = session.until("session.done")
        assert len(audio) == FRAME * 2


def test_a_gigantic_message_costs_the_socket_but_not_the_server() -> None:
    with serving(FakeVoice(), max_message_bytes=4096) as live:
        with live.connect() as websocket:
            with suppress(ConnectionClosed):  # it may be lost before all is sent
                websocket.send("x" * (4 << 20))
            with pytest.raises(ConnectionClosed) as closed:
                websocket.recv(timeout=10)
            assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
        assert len(speak_once(live)) == 3 * FRAME * 2


def test_a_failing_voice_keeps_the_socket() -> None:
    voice = FakeVoice(error=EngineFailure("a tensor is NaN"))
    with serving(voice) as live, live.connect() as websocket:
        session = Session(websocket)
        voice.fail_at = 1
        session.say("breaks")
        start = session.receive()
        assert isinstance(start, dict)
        assert start["type"] == "audio.start"
        assert isinstance(session.receive(), bytes)
        answer = session.receive()
        assert isinstance(answer, dict)
        assert (answer["code"], answer["utterance_index"]) == ("engine_error", 0)
        voice.fail_at = None
        session.say("works")
        session.until("session.done")


def test_silence_is_ended_but_not_during_speech() -> None:
    voice = FakeVoice(n_chunks=12, delay_s=0.05)
    with serving(voice, idle_timeout_s=0.3) as live, live.connect() as websocket:
        session = Session(websocket)
        session.say("longer than the idle time")
        session.until("session.done")
        begun = time.perf_counter()
        answer = session.receive()
        assert isinstance(answer, dict)
        assert answer["code"] == "idle_timeout"
        assert time.perf_counter() - begun > 0.2
        with pytest.raises(ConnectionClosed):
            websocket.recv(timeout=5)


def test_random_noise_on_the_port() -> None:
    with serving(FakeVoice()) as live:
        for noise in (b"\0" * 1000, b"GET / HTTP/9.9\r\n\r\n", b"POST /synthesize HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", live.port), timeout=5) as raw:
                raw.sendall(noise)
        assert live.get("/health").status_code == 200
