"""The Wyoming door and clients that misbehave, leave or crowd, and its end."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest
from fake_voice import FakeVoice
from live import until
from wyoming.info import Describe
from wyoming.ping import Ping
from wyoming_live import (
    FRAME_BYTES,
    START,
    STOP,
    Heard,
    LiveWyoming,
    RawClient,
    at_rest,
    chunk,
    listen,
    say,
    serving_wyoming,
    spoken,
    synthesize,
)

from kazeia_server.doors.wyoming.server import start_wyoming
from kazeia_server.errors import ServerError
from kazeia_server.ops.sessions import SessionLimit
from kazeia_server.settings import Settings

# ---- clients that misbehave ------------------------------------------------------


def leave_politely(client: RawClient) -> None:
    client.file.close()
    client.socket.close()


def leave_with_a_reset(client: RawClient) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    leave_politely(client)


def leave_half(client: RawClient) -> None:
    client.socket.shutdown(socket.SHUT_WR)


LEAVINGS = [leave_politely, leave_with_a_reset, leave_half]


@pytest.mark.parametrize("leave", LEAVINGS)
@pytest.mark.parametrize("live_text", [False, True])
def test_a_client_that_leaves_frees_its_slot(
    leave: Callable[[RawClient], None], live_text: bool
) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice, max_concurrent=1, max_queue=0) as live:
        for _ in range(5):
            with live.connect() as client:
                client.send(*([START, chunk("Text. And")] if live_text else [synthesize()]))
                client.until("audio-chunk")
                leave(client)
                until(lambda: at_rest(live, voice))
        voice.n_chunks = 2
        assert len(say(live)) == 2 * FRAME_BYTES


@pytest.mark.parametrize("leave", LEAVINGS)
def test_a_client_that_leaves_the_line(leave: Callable[[RawClient], None]) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice, max_concurrent=1, max_queue=2) as live, live.connect() as first:
        first.send(synthesize())
        first.until("audio-chunk")
        for _ in range(3):
            with live.connect() as second:
                second.send(synthesize())
                until(lambda: live.service.waiting == 1)
                leave(second)
                until(lambda: live.service.waiting == 0)


def test_fifty_that_leave_at_once() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice) as live:
        for n in range(50):
            client = live.connect()
            if n % 3:
                client.send(synthesize())
            if n % 3 == 2:
                client.until("audio-chunk")
            LEAVINGS[n % 2](client)
        until(lambda: at_rest(live, voice) and not live.server._connections)
        voice.n_chunks = 1
        assert len(say(live)) == FRAME_BYTES


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\0" * 1000 + b"\n", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "invalid_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", "invalid_request"),
        (b"[" * 4000 + b"\n", "invalid_request"),
        (b"x" * 100_000, "payload_too_large"),
        (b'{"type": "describe", "data": {"x": "' + b"y" * 3_000_000, "payload_too_large"),
        (b'{"type": "synthesize", "data_length": 99999999999}\n', "payload_too_large"),
        (b'{"type": "ping", "payload_length": 99999999999}\n', "payload_too_large"),
        (b'{"type": "ping", "payload_length": -5}\n', "invalid_request"),
        (b'{"type": "ping", "data_length": 4}\n{}{}\n', "invalid_request"),
    ],
)
def test_garbage_is_answered_with_an_error(data: bytes, code: str) -> None:
    with serving_wyoming(FakeVoice(), max_message_bytes=4096) as live:
        with live.connect() as client:
            client.socket.sendall(data)
            assert client.error().code == code
        assert len(say(live)) == 3 * FRAME_BYTES


def test_a_payload_shorter_than_announced_swallows_what_follows() -> None:
    """The lengths say where an event ends, so a wrong one garbles the rest: an error, no hang."""
    with serving_wyoming(FakeVoice()) as live:
        with live.connect() as client:
            client.socket.sendall(b'{"type": "ping", "payload_length": 30}\n' + b"short")
            client.send(Ping().event(), Ping().event())
            client.until("pong")
            assert client.error().code == "invalid_request"
        with live.connect() as client:  # and one that never comes
            client.socket.sendall(b'{"type": "ping", "payload_length": 3000}\nshort')
            client.socket.shutdown(socket.SHUT_WR)
            assert client.receive() is None


def test_an_error_ends_what_is_being_spoken() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice) as live, live.connect() as client:
        client.send(synthesize())
        client.until("audio-chunk")
        client.socket.sendall(b"garbage\n")
        heard = Heard(rate=24_000, starts=1)
        while not heard.lost:
            heard.take(client.receive())
        assert heard.error is not None
        assert heard.stops == 0
        until(lambda: at_rest(live, voice))


def stalled_client(live: LiveWyoming) -> RawClient:
    """A client that asks for speech and then never reads."""
    client = RawClient(live.port, receive_buffer=4096)
    client.send(synthesize())
    until(lambda: live.service.running == 1)
    return client


def test_a_slow_reader_stalls_nobody_else_and_memory_is_bounded() -> None:
    voice = FakeVoice(n_chunks=None)
    with serving_wyoming(voice, max_concurrent=2, send_timeout_s=60.0) as live:
        with stalled_client(live) as stalled:
            stream = voice.streams[0]
            made = -1
            while made != stream.made:  # the voice comes to rest: nothing grows any more
                made = stream.made
                time.sleep(0.3)
            voice.n_chunks = made + 20
            assert len(say(live)) == (made + 20) * FRAME_BYTES
            assert stream.made == made
            heard = listen(stalled)  # it reads at last, and nothing is missing
            assert len(heard.audio) == (made + 20) * FRAME_BYTES
        until(lambda: at_rest(live, voice))


def test_a_reader_that_never_reads_is_dropped() -> None:
    voice = FakeVoice(n_chunks=None)
    with serving_wyoming(voice, max_concurrent=1, send_timeout_s=0.5) as live:
        with stalled_client(live):
            until(lambda: at_rest(live, voice) and not live.server._connections, 15)


def test_a_flood_of_pings_nobody_reads_is_bounded() -> None:
    with serving_wyoming(FakeVoice(n_chunks=1), send_timeout_s=0.5) as live:
        client = RawClient(live.port, receive_buffer=4096)
        ping = json.dumps({"type": "ping", "data": {"text": "x" * 1000}}).encode() + b"\n"
        with client, pytest.raises((ConnectionError, TimeoutError)):
            client.socket.settimeout(5)
            for _ in range(100_000):  # 100 MB: far more than all buffers on the way
                client.socket.sendall(ping)
        until(lambda: not live.server._connections, 15)
        assert len(say(live)) == FRAME_BYTES


def test_an_idle_connection_is_ended_but_not_during_speech() -> None:
    voice = FakeVoice(n_chunks=12, delay_s=0.05)
    with serving_wyoming(voice, idle_timeout_s=0.3) as live:
        with live.connect() as client:
            client.send(synthesize())
            assert len(listen(client).audio) == 12 * FRAME_BYTES
            assert client.error().code == "idle_timeout"
        with live.connect() as client:
            client.send(START)
            assert client.error().code == "idle_timeout"
        with live.connect() as client:
            client.socket.sendall(b'{"type": "pi')
            assert client.error().code == "idle_timeout"


def test_too_many_connections() -> None:
    with serving_wyoming(FakeVoice(), max_sessions=2) as live:
        with live.connect() as first, live.connect() as second:
            for client in (first, second):
                client.send(Ping().event())
                client.until("pong")
            with live.connect() as third:
                third.send(Describe().event())
                assert third.error().code == "busy"
        until(lambda: not live.server._connections)
        assert say(live)


def test_clients_at_once() -> None:
    voice = FakeVoice(n_chunks=5, delay_s=0.002)

    async def one(live: LiveWyoming, n: int) -> bytes:
        heard = Heard()
        async with live.client() as client:
            if n % 2:
                await client.write_event(synthesize(f"Text {n}."))
            else:
                await client.write_event(START)
                for piece in ("Te", f"xt {n}", "."):
                    await client.write_event(chunk(piece))
                    await asyncio.sleep(0.005)
                await client.write_event(STOP)
            while not (heard.stopped if n % 2 == 0 else heard.stops):
                heard.take(await client.read_event())
                assert not heard.lost
        return heard.audio

    async def everybody(live: LiveWyoming) -> list[bytes]:
        return await asyncio.gather(*(one(live, n) for n in range(12)))

    with serving_wyoming(voice, max_concurrent=2, max_queue=16) as live:
        sounds = asyncio.run(everybody(live))
        until(lambda: at_rest(live, voice))
    assert {len(audio) for audio in sounds} == {5 * FRAME_BYTES}
    assert sorted(spoken(voice)) == sorted(f"Text {n}." for n in range(12))
    assert voice.most_open == 2


# ---- the end ---------------------------------------------------------------------


def test_draining_lets_speech_end_and_sends_the_idle_away() -> None:
    gate = threading.Event()
    voice = FakeVoice(n_chunks=3, gate=gate)
    with serving_wyoming(voice) as live:
        with live.connect() as speaking, live.connect() as idle, live.connect() as streaming:
            speaking.send(synthesize())
            streaming.send(START, chunk("One."))
            idle.send(Ping().event())
            idle.until("pong")
            until(lambda: live.service.running == 2)
            closing = asyncio.run_coroutine_threadsafe(live.server.close(20), live.loop)
            assert idle.receive() is None
            with pytest.raises(ConnectionRefusedError):
                live.connect()
            gate.set()
            streaming.send(chunk(" Two."), STOP)
            assert len(listen(speaking).audio) == 3 * FRAME_BYTES
            assert speaking.receive() is None
            heard = listen(streaming, stopped=True)
            assert heard.stopped
            assert heard.audio
            assert streaming.receive() is None
            for client in (speaking, idle, streaming):
                leave_politely(client)
            closing.result(20)


def test_the_end_of_grace_ends_speech_with_an_error() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice) as live, live.connect() as client:
        client.send(synthesize())
        client.until("audio-chunk")
        closing = asyncio.run_coroutine_threadsafe(live.server.close(0.2), live.loop)
        heard = Heard(rate=24_000, starts=1)
        while not heard.lost:
            heard.take(client.receive())
        assert heard.error is not None
        assert (heard.error.code, heard.stops) == ("shutting_down", 0)
        leave_politely(client)
        closing.result(20)
        until(lambda: at_rest(live, voice))


def test_the_end_does_not_wait_for_clients_that_do_not_react() -> None:
    voice = FakeVoice(n_chunks=None)
    with serving_wyoming(voice, send_timeout_s=600.0) as live, stalled_client(live):
        live.call(live.server.close(0), timeout=20)
        until(lambda: at_rest(live, voice))


def test_a_service_that_closes_first_is_no_end_of_speech() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving_wyoming(voice) as live, live.connect() as client:
        client.send(synthesize())
        client.until("audio-chunk")
        live.call(live.service.close())
        heard = Heard(rate=24_000, starts=1)
        while not heard.lost:
            heard.take(client.receive())
        assert heard.error is not None
        assert (heard.error.code, heard.stops) == ("shutting_down", 0)


def test_a_port_that_is_taken() -> None:
    with serving_wyoming(FakeVoice()) as live:
        with pytest.raises(ServerError, match=f"cannot listen on 127.0.0.1:{live.port}"):
            settings = Settings(wyoming_port=live.port)
            live.call(start_wyoming(live.service, settings, SessionLimit(1)))
