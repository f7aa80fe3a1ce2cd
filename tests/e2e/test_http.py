"""POST /synthesize over real sockets: clients that come, leave and stall."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from fake_voice import FRAME, FakeVoice
from live import Live, serving, until


def ask(live: Live, text: str = "endless", receive_buffer: int | None = None) -> socket.socket:
    """A request on a bare socket, not yet answered."""
    raw = socket.socket()
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(10)
    raw.connect(("127.0.0.1", live.port))
    body = json.dumps({"text": text}).encode()
    raw.sendall(
        b"POST /synthesize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    return raw


def test_a_client_that_leaves_ends_the_synthesis() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        for _ in range(10):
            raw = ask(live)
            until(lambda: voice.open_now == 1)
            raw.close()
            until(lambda: voice.open_now == 0 and live.service.running == 0)
        voice.n_chunks = 3
        assert live.post({"text": "Still here."}).status_code == 200


def test_a_client_that_leaves_while_waiting_leaves_the_line() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=1) as live:
        first = ask(live)
        until(lambda: live.service.running == 1)
        second = ask(live)
        until(lambda: live.service.waiting == 1)
        second.close()
        until(lambda: live.service.waiting == 0)
        first.close()
        until(lambda: live.service.running == 0)
        assert len(voice.requests) == 1


def test_a_client_that_leaves_in_the_middle_of_its_request() -> None:
    with serving(FakeVoice()) as live:
        for _ in range(5):
            raw = socket.create_connection(("127.0.0.1", live.port), timeout=5)
            raw.sendall(
                b"POST /synthesize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b'Content-Length: 100\r\n\r\n{"text": '
            )
            raw.close()
        assert live.post({"text": "Still here."}).status_code == 200


def test_a_client_that_does_not_read_its_answer_holds_no_slot() -> None:
    voice = FakeVoice(n_chunks=4000)  # more than the system's socket buffers take
    with serving(voice, max_concurrent=1, max_queue=0, send_timeout_s=0.5) as live:
        raw = ask(live, "long", receive_buffer=4096)
        until(lambda: len(voice.requests) == 1 and live.service.running == 0, 20)
        voice.n_chunks = 2
        assert live.post({"text": "quick"}).status_code == 200
        time.sleep(1.0)  # until the answer is given up
        raw.settimeout(5)
        got = 0
        try:
            while data := raw.recv(1 << 20):
                got += len(data)
        except OSError:
            pass
        raw.close()
        assert got < 4000 * FRAME * 2


def test_fifty_one_after_the_other() -> None:
    voice = FakeVoice(n_chunks=2)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        for n in range(50):
            response = live.post({"text": f"text {n}"})
            assert response.status_code == 200
            assert len(response.content) == 44 + 2 * FRAME * 2
    assert voice.open_now == 0


def test_eight_in_parallel_on_two_slots() -> None:
    voice = FakeVoice(n_chunks=4, delay_s=0.003)
    with serving(voice, max_concurrent=2, max_queue=8) as live, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: live.post({"text": f"text {n}"}), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert voice.most_open == 2


def test_health_answers_while_everything_is_busy() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.001)
    with serving(voice, max_concurrent=2, max_queue=2) as live:
        sockets = [ask(live) for _ in range(4)]
        until(lambda: live.service.running == 2 and live.service.waiting == 2)
        slowest = 0.0
        for _ in range(20):
            begun = time.perf_counter()
            assert live.get("/health").status_code == 200
            slowest = max(slowest, time.perf_counter() - begun)
        assert slowest < 1.0
        for raw in sockets:
            raw.close()
        until(lambda: live.service.running == 0 and live.service.waiting == 0)
